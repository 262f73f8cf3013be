"""What stands behind a grid study: readings inside the models, cost, runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from reports import words
from reports.costs import place_of
from reports.grid.evaluation import StudyStats
from reports.grid.parts import DECIMALS, study_table
from reports.grid.probes import ATTENTION, KEY_NORMS, PROBES, QUERY_NORM, Course, Probes
from reports.parts import EMPTY
from reports.rows import BASELINE, Row
from reports.table import Item, Table, Value


def readings(stats: StudyStats, probes: Probes) -> Table | None:
    """Norms and attention before and after training, by outcome; None without readings."""
    study = stats.study
    names = (*KEY_NORMS, QUERY_NORM, "attention_biased", "attention_unbiased")
    rows, records = [], []
    for variant in study.variants:
        for outcome in study.outcomes:
            course = probes.courses.get((study.key, variant, outcome))
            if course is None:
                continue
            items = [Item(variant), Item(outcome), Item(f"{course.runs:,}", sort=course.runs)]
            rows.append(items + [_reading(course, name) for name in names])
            record: dict[str, Value] = {
                "attention": variant, "outcome": outcome, "runs": course.runs,
            }  # fmt: skip
            for name in PROBES:
                curve = course.curves.get(name)
                record[f"{name}_start"] = curve.mean[0] if curve else None
                record[name] = curve.mean[-1] if curve else None
            records.append(record)
    if not rows:
        return None
    header = ["attention", "outcome", "runs"]
    header += [f"key norm, {label}" for label in KEY_NORMS.values()]
    header += ["query norm", *(f"attention on {ATTENTION[name]}" for name in names[4:])]
    return study_table(
        study,
        "readings",
        "Norms and attention",
        "Means over the runs of an outcome, before training → after the last epoch, on training "
        "samples; attention is the mass that the read-out token puts on the answer.",
        header,
        rows,
        (),
        records,
        folded=True,
    )


def _reading(course: Course, name: str) -> Item:
    curve = course.curves.get(name)
    if curve is None:
        return EMPTY
    decimals = 2 if name in ATTENTION else DECIMALS
    start, end = (words.number(value, decimals) for value in (curve.mean[0], curve.mean[-1]))
    return Item(f"{start} → {end}", sort=curve.mean[-1])


def cost(stats: StudyStats) -> Table | None:
    """Parameters, time and how many runs were trained at once, None without a finished run."""
    study = stats.study
    rows: list[list[Item]] = []
    records: list[dict[str, Value]] = []
    base: float | None = None
    for variant in study.variants:
        done = [row for row in study.by_variant[variant].values() if row.done]
        if not done:
            continue
        seconds = _median(done, lambda row: row.seconds)
        together = _median(done, lambda row: row.grid.together if row.grid else None)
        parameters = _median(done, lambda row: row.parameters_total)
        own = _median(done, lambda row: row.parameters_attention)
        total = sum(row.seconds or 0.0 for row in done)
        base = seconds if variant == BASELINE else base
        ratio = seconds / base if seconds and base else None
        rows.append(
            [
                Item(variant),
                _amount(parameters, "{:,.0f}".format),
                _amount(own, "{:,.0f}".format),
                _amount(seconds, words.duration),
                _amount(ratio, words.ratio),
                _amount(together, "{:,.0f}".format),
                _amount(total, words.duration),
            ]
        )
        records.append(
            {
                "attention": variant,
                "runs": len(done),
                "parameters": parameters,
                "parameters_attention": own,
                "seconds": seconds,
                "seconds_ratio": ratio,
                "trained_together": together,
                "seconds_total": total,
            }
        )
    if not rows:
        return None
    places = sorted({place_of(row.device, row.threads) for row in study.rows if row.done})
    header = (
        "attention", "parameters", "in attention", "time per run", "ratio", "trained together",
        "all runs",
    )  # fmt: skip
    caption = (
        "Medians over runs; the time of a run that was trained together with others is its share "
        "of theirs."
    )
    notes = (
        f"Runs on {words.listing(places)}. They share the machine with others, so times are rough.",
    )
    return study_table(study, "cost", "Cost", caption, header, rows, notes, records, folded=True)


def _median(rows: Sequence[Row], get: Callable[[Row], float | None]) -> float | None:
    values = [value for row in rows if (value := get(row)) is not None]
    return float(median(values)) if values else None


def _amount(value: float | None, form: Callable[[float], str]) -> Item:
    return EMPTY if value is None else Item(form(value), sort=value)


def runs(stats: StudyStats) -> Table:
    """Which runs stand behind the study, in one line a variant."""
    study = stats.study
    rows: list[list[Item]] = []
    records: list[dict[str, Value]] = []
    for variant in study.variants:
        found = list(study.by_variant[variant].values())
        done = [row for row in found if row.done]
        outcome = ", ".join(study.words(variant)) or "complete"
        commits = sorted({row.commit[:10] + " +" * bool(row.dirty) for row in done if row.commit})
        days = sorted({row.time[:10] for row in done if row.time})
        texts = [
            outcome, ", ".join(commits), " to ".join(dict.fromkeys((days[0], days[-1]))) if days
            else "",
            ", ".join(sorted({row.machine for row in done if row.machine})),
        ]  # fmt: skip
        rows.append([Item(variant), Item(f"{len(done):,}", sort=len(done)), *map(Item, texts)])
        names = ("outcome", "commits", "dates", "machines")
        records.append(
            {"attention": variant, "done": len(done), **dict(zip(names, texts, strict=True))}
        )
    folder = f"{study.key.domain}/{study.key.dataset}/ATTENTION/HASH/seed=SEED"
    return study_table(
        study,
        "runs",
        "Runs",
        "What the study is made of.",
        ("attention", "done", "outcome", "code", "dates", "machine"),
        rows,
        (
            f"grid_runs.csv lists every run; its folder in the store is {folder}.",
            *(["+: with uncommitted changes."] if any(r.dirty for r in study.rows) else []),
        ),
        records,
        folded=True,
    )
