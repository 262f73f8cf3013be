"""Success rates quoted from elsewhere beside those of a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from reports.grid.evaluation import StudyStats
from reports.grid.parts import rate_text, study_table
from reports.grid.studies import StudyKey
from reports.labels import USUAL, neat
from reports.parts import EMPTY
from reports.published import COMPARABLE_BUDGET, Published, load
from reports.table import Item, Table

METRIC = "test/success_rate"


@dataclass(frozen=True)
class QuotedGrid:
    """What a grid that somebody else ran is, in our words.

    Attributes:
        recipe: of ours.
        protocol: of ours.
        columns: values of the first axis.
        lines: values of the second axis.
    """

    recipe: str
    protocol: str
    columns: tuple[str, ...]
    lines: tuple[str, ...]

    def points(self) -> frozenset[tuple[str, str]]:
        """Of the grid."""
        return frozenset(product(self.columns, self.lines))


GRIDS: Mapping[str, QuotedGrid] = {
    "50ep_grid_6lr_x_5wd": QuotedGrid(
        "50ep",
        "paper",
        ("0.0005", "0.001", "0.0025", "0.005", "0.0075", "0.01"),
        ("0", "0.01", "0.02", "0.05", "0.1"),
    ),
    "50ep_grid_2lr_x_1wd": QuotedGrid("50ep", "paper", ("0.001", "0.0025"), ("0.02",)),
}
"""By the first word of `recipe` in the files of `published/`; further words are settings."""
USUAL_HERE: Mapping[str, str] = {**USUAL, "dataset.train": "2000"}
"""Settings of quoted grids that name none."""
UNNAMED = "qknorm"
"""Published under this name where the paper does not say which form of the family it is."""
COMPARABLE_KINDS = frozenset({"real", "regenerated"})


@dataclass(frozen=True)
class QuotedRate:
    """A quoted rate beside ours.

    Attributes:
        variant: ours.
        value: theirs, in percent.
        published: where it comes from.
        verdict: whether our interval covers it, in words.
    """

    variant: str
    value: float
    published: Published
    verdict: str


def compare(stats: StudyStats) -> list[QuotedRate]:
    """Quoted rates of a study with the settings and the grid of this one."""
    found = []
    for quoted in quotes(stats.study.key, stats.study.points(), METRIC):
        for variant in stats.study.variants:
            if quoted.value is not None and _same(quoted.attention, variant):
                verdict = _verdict(stats, variant, quoted.value)
                found.append(QuotedRate(variant, quoted.value, quoted, verdict))
    return sorted(found, key=lambda one: stats.study.variants.index(one.variant))


def quotes(key: StudyKey, points: frozenset[tuple[str, str]], metric: str) -> list[Published]:
    """What is quoted for a task, model, recipe, protocol and settings on these points."""
    found = []
    for quoted in load().get((key.domain, key.dataset, key.model), ()):
        name, *settings = quoted.recipe.split(" ")
        grid = GRIDS.get(name)
        if quoted.metric != metric or grid is None or key.kind not in COMPARABLE_KINDS:
            continue
        wanted = {**USUAL_HERE, **dict(text.split("=", 1) for text in settings)}
        same = all(neat(value) == wanted.get(name) for name, value in key.settings().items())
        unset = {name for name in wanted if wanted[name] != USUAL_HERE.get(name)}
        if (
            (grid.recipe, grid.protocol, COMPARABLE_BUDGET)
            == (key.recipe, key.protocol, key.budget)
            and same
            and unset <= key.settings().keys()
            and grid.points() == points
        ):
            found.append(quoted)
    return found


def _same(theirs: str, ours: str) -> bool:
    return theirs == ours or (theirs == UNNAMED and ours.startswith(f"{UNNAMED}_"))


def _verdict(stats: StudyStats, variant: str, value: float) -> str:
    own = stats.of(variant)
    if own.rate is None or own.rate.interval is None:
        return "no interval of ours"
    if not own.complete:
        return "our grid is incomplete"
    return "inside" if own.rate.interval.covers(value) else "outside"


def published_rates(stats: StudyStats) -> Table | None:
    """Ours beside the papers' and the reference run's, None where nothing is comparable."""
    found = compare(stats)
    if not found:
        return None
    rows, records = [], []
    for quoted in found:
        own, theirs = stats.of(quoted.variant), quoted.published
        rows.append(
            [
                Item(quoted.variant),
                Item(rate_text(own.rate), sort=own.rate.percent) if own.rate else EMPTY,
                Item(theirs.text, sort=quoted.value),
                Item(str(theirs.runs or "not said")),
                Item(quoted.verdict),
                Item(theirs.source),
                Item(theirs.note),
            ]
        )
        interval = own.rate.interval if own.rate else None
        records.append(
            {
                "attention": quoted.variant,
                "success": own.rate.percent if own.rate else None,
                "low": interval.low if interval else None,
                "high": interval.high if interval else None,
                "published": quoted.value,
                "published_runs": theirs.runs,
                "verdict": quoted.verdict,
                "source": theirs.source,
                "remark": theirs.note,
            }
        )
    notes = (
        "Inside, outside: whether our 95 % interval covers the number. Their own uncertainty is "
        "not part of it.",
        "Reference run: an implementation of the same task and protocol of its own, made to settle "
        "what the paper leaves open; no paper printed its numbers.",
    )
    return study_table(
        stats.study,
        "published",
        "Published success rates",
        "Success in percent, quoted beside ours; only numbers of the same grid and protocol.",
        ["attention", "ours", "published", "of runs", "verdict", "source", "remarks"],
        rows,
        notes,
        records,
    )
