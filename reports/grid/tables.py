"""The main tables of one grid study, and what they say in sentences."""

from __future__ import annotations

from reports import words
from reports.across import VERDICTS, Finding
from reports.grid.evaluation import StudyStats, VariantStats
from reports.grid.parts import DECIMALS, difference_text, grid_words, rate_text, study_table
from reports.grid.published import compare
from reports.grid.rates import DRAWS
from reports.grid.studies import DIVERGED, Study, called
from reports.parts import EMPTY
from reports.rows import BASELINE
from reports.stats import Difference
from reports.table import Item, Table, Value


def success(stats: StudyStats) -> Table:
    """Success of each variant over the whole grid, beside the baseline and the paper."""
    study = stats.study
    failures = [
        name
        for name in study.outcomes[1:]
        if name != DIVERGED or any(v.shares[DIVERGED] for v in stats.variants)
    ]
    published = {found.variant: found for found in compare(stats) if found.published.of_paper}
    header = ["attention", "success, %, ↑", "runs"]
    header += [f"difference to {BASELINE}, points"] if study.has_baseline else []
    header += ["published"] if published else []
    header += [f"{name}, %" for name in failures]
    rows: list[list[Item]] = []
    records: list[dict[str, Value]] = []
    for own in stats.variants:
        badge = ", ".join(own.words)
        row = [
            Item(own.variant),
            Item(rate_text(own.rate), badge, sort=own.rate.percent)
            if own.rate
            else Item("", badge or "not run", tone="muted"),
            Item(f"{own.rate.n:,}", sort=own.rate.n) if own.rate else EMPTY,
        ]
        if study.has_baseline:
            row.append(_difference(own))
        if published:
            found = published.get(own.variant)
            row.append(
                Item(found.published.text, found.verdict, sort=found.value) if found else EMPTY
            )
        row += [_share(own, name) for name in failures]
        rows.append(row)
        records.append(_record(stats, own))
    notes = [
        f"Success: the share of runs that end {study.outcomes[0]}, over {grid_words(study)}.",
        f"95 % interval: bootstrap with {DRAWS:,} draws that resamples the data seeds and, crossed "
        "with them, the initialisation seeds; the points of the grid are fixed. Differences are "
        "over the same runs and the same draws; their intervals are not corrected for their "
        "number, the verdicts are (Bonferroni).",
        *_definitions(study),
    ]
    if any(v.shares[DIVERGED] for v in stats.variants):
        notes.append("A run that diverged counts as a run without success.")
    if not all(v.complete for v in stats.variants):
        notes.append(
            "Where runs are missing the rate is over the others, so it need not be that of the "
            "whole grid; the difference is over the runs that both have."
        )
    return study_table(
        study, "success", "Success", f"{grid_words(study)}.", header, rows, notes, records
    )


def _definitions(study: Study) -> list[str]:
    info = next((row.info for row in study.rows if row.done), {})
    found = []
    for name in study.spec.outcomes:
        if name in info and info[name].note:
            # An outcome is a metric of 100 or 0, and its note says when it is 100.
            when = info[name].note.removeprefix("100 if ").removesuffix(", else 0")
            found.append(f"{name.rpartition('/')[2]}: {when}")
    return [f"Outcomes: {'; '.join(found)}."] if found else []


_TONES = {"better": "better", "worse": "worse"}


def _difference(own: VariantStats) -> Item:
    if own.difference is None:
        return EMPTY
    return Item(
        difference_text(own.difference),
        sort=own.difference.points,
        details=(own.verdict,),
        tone=_TONES.get(own.verdict, ""),
    )


def _share(own: VariantStats, name: str) -> Item:
    if own.rate is None:
        return EMPTY
    return Item(words.number(own.shares[name], DECIMALS), sort=own.shares[name])


def _record(stats: StudyStats, own: VariantStats) -> dict[str, Value]:
    key, rate, difference = stats.study.key, own.rate, own.difference
    interval = rate.interval if rate else None
    paired = difference.interval if difference else None
    return {
        "domain": key.domain,
        "dataset": key.dataset,
        "protocol": key.protocol,
        "protocol_version": key.protocol_version,
        "model": key.model,
        "recipe": key.recipe,
        "budget": key.budget,
        "kind": key.kind,
        "setting": key.setting,
        "attention": own.variant,
        "runs_expected": len(stats.study.places),
        "n": rate.n if rate else 0,
        "hits": rate.hits if rate else 0,
        "success": rate.percent if rate else None,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "pairs": difference.n if difference else None,
        "difference": difference.points if difference else None,
        "difference_low": paired.low if paired else None,
        "difference_high": paired.high if paired else None,
        "verdict": own.verdict,
        "outcome": ", ".join(own.words) or "complete",
        **{name: own.shares[name] for name in stats.study.outcomes[1:]},
    }


def by_column(stats: StudyStats) -> Table | None:
    """Success at each value of the first axis, None where it has one value only."""
    study = stats.study
    if len(study.columns) < 2:
        return None
    axis, other = (called(key) for key in study.spec.axes)
    rows: list[list[Item]] = []
    records: list[dict[str, Value]] = []
    for own in stats.variants:
        items = [Item(own.variant)]
        for value, rate in zip(study.columns, own.by_column, strict=True):
            interval = rate.interval if rate else None
            detail = (words.interval(interval, DECIMALS),) if interval else ()
            items.append(
                Item(words.number(rate.percent, DECIMALS), sort=rate.percent, details=detail)
                if rate
                else EMPTY
            )
            records.append(
                {
                    "attention": own.variant,
                    study.spec.axes[0]: value,
                    "n": rate.n if rate else 0,
                    "success": rate.percent if rate else None,
                    "low": interval.low if interval else None,
                    "high": interval.high if interval else None,
                }
            )
        rows.append(items)
    return study_table(
        study,
        "by_" + study.spec.axes[0].rpartition(".")[2],
        f"Success by {axis}",
        f"Success in percent at each {axis}, mean over the other axis ({other}) and the seeds.",
        ["attention", *study.columns],
        rows,
        (),
        records,
    )


def findings(stats: StudyStats) -> list[Finding]:
    """Each comparison with the baseline in a sentence."""
    found = []
    base = next((v.rate for v in stats.variants if v.variant == BASELINE), None)
    for own in stats.variants:
        difference = own.difference
        if difference is None or own.rate is None or base is None:
            continue
        verdict, tone = VERDICTS[own.verdict]
        found.append(
            Finding(
                f"{own.variant} {words.MINUS} {BASELINE} in success: "
                f"{difference_text(difference)} points, n = {difference.n:,}",
                verdict,
                tone,
                f"{words.number(own.rate.percent, DECIMALS)} % of its runs end "
                f"{stats.study.outcomes[0]}, {words.number(base.percent, DECIMALS)} % of those of "
                f"{BASELINE}",
                Difference(
                    difference.n, difference.points, None, difference.interval, None, base.percent
                ),
            )
        )
    return found
