"""The tables of one group of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reports import stats, words
from reports.analysis import CellStats, GroupStats
from reports.costs import cost
from reports.groups import Cell, Column, missing_command
from reports.parts import EMPTY, SPREAD, reference, sample_item, sample_record, titled
from reports.published import published_numbers
from reports.rows import BASELINE, MetricInfo
from reports.table import Item, Table, Value

SELECTION_GAP = "test/selection_gap"


def tables_of(table: GroupStats) -> list[Table]:
    """Every table that the runs of a group allow, quality first."""
    made = [
        quality(table),
        differences(table),
        selection_gap(table),
        cost(table),
        published_numbers(table),
        metrics(table),
        telemetry(table),
    ]
    return [one for one in made if one is not None]


def quality(table: GroupStats) -> Table:
    """Mean, spread and outcome of each cell; bold where the best cannot be told apart."""
    group = table.group
    same = {(c.primary, c.info.unit, c.info.higher_is_better) for c in group.columns if c.primary}
    shared = words.metric_label(*same.pop()) if len(same) == 1 else ""
    header = ["attention"]
    for column in group.columns:
        label = words.metric_label(column.primary, column.info.unit, column.info.higher_is_better)
        header.append(column.label if shared or not column.primary else f"{column.label}: {label}")
    rows = [[Item(variant)] for variant in group.variants]
    records: list[dict[str, Value]] = []
    for column in group.columns:
        for row, cell in zip(rows, table.column(column), strict=True):
            row.append(_quality_item(cell))
            records.append(_quality_record(table, cell))
    notes = [*group.notes()]
    if shared and len(group.columns) > 1:
        header.append("average")
        notes += _averages(table, rows)
    bold = any(item.bold for row in rows for item in row)
    if bold:
        notes.append(
            "Bold: not distinguishable from the best of the column (the paired 95 % t-interval of "
            "the difference to it covers 0, or all values are the same); needs two seeds, all "
            "seeds done, and another variant to compare with."
        )
    caption = f"{shared}. {SPREAD}" if shared else SPREAD
    return titled(table, "quality", "Quality", caption, header, rows, notes, records)


def _averages(table: GroupStats, rows: Sequence[list[Item]]) -> list[str]:
    omitted = []
    for variant, row in zip(table.group.variants, rows, strict=True):
        samples = [table.cells[(variant, column.label)].sample for column in table.group.columns]
        if variant in table.complete and all(samples):
            mean = sum(sample.mean for sample in samples if sample) / len(samples)
            row.append(Item(words.number(mean, 2), sort=mean))
        else:
            row.append(Item("–", tone="muted"))
            omitted.append(variant)
    if not omitted:
        return []
    return [f"No average for {words.listing(omitted)}: not every seed of every column is done."]


def _quality_item(cell: CellStats) -> Item:
    outcome = ", ".join(cell.cell.words())
    if cell.sample is None:
        return Item("", outcome, ref=reference(cell), tone="muted")
    details: tuple[str, ...] = ()
    if cell.difference is not None:
        lines = (
            words.difference(cell.difference, cell.decimals),
            words.p_phrase(cell.difference.p, cell.adjusted),
        )
        details = tuple(line for line in lines if line)
    return Item(
        words.sample(cell.sample, cell.decimals),
        outcome,
        cell.bold,
        cell.sample.mean,
        details,
        reference(cell),
        _TONES.get(cell.verdict, ""),
    )


def _quality_record(table: GroupStats, cell: CellStats) -> dict[str, Value]:
    key, column = table.group.key, cell.column
    sample, difference, relative = cell.sample, cell.difference, cell.relative
    interval = difference.interval if difference else None
    return {
        "domain": key.domain,
        "dataset": cell.cell.dataset,
        "protocol": key.protocol,
        "protocol_version": key.protocol_version,
        "model": key.model,
        "recipe": key.recipe,
        "budget": key.budget,
        "kind": key.kind,
        "setting": key.setting,
        "fingerprint": column.fingerprint,
        "attention": cell.variant,
        "metric": column.primary,
        "unit": column.info.unit,
        "higher_is_better": column.info.higher_is_better,
        "seeds_expected": len(cell.cell.seeds),
        "n": sample.n if sample else 0,
        "mean": sample.mean if sample else None,
        "sd": sample.sd if sample else None,
        "outcome": ", ".join(cell.cell.words()) or "complete",
        "bold": cell.bold,
        "pairs": difference.n if difference else None,
        "difference": difference.mean if difference else None,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "p": difference.p if difference else None,
        "p_holm": cell.adjusted,
        "relative_percent": relative.mean if relative else None,
        "relative_low": relative.interval.low if relative and relative.interval else None,
        "relative_high": relative.interval.high if relative and relative.interval else None,
        "verdict": cell.verdict,
    }


def differences(table: GroupStats) -> Table | None:
    """Difference to the baseline by seed, None if nothing is compared."""
    cells = table.comparisons()
    if not cells:
        return None
    tests = ("p", "p Holm") if table.tests else ()
    header = ("data set", "attention", "difference", "relative, %", "n", *tests, "verdict")
    rows = []
    for cell in cells:
        assert cell.difference is not None
        relative = cell.relative
        rows.append(
            [
                Item(cell.column.label),
                Item(cell.variant),
                Item(
                    words.difference(cell.difference, cell.decimals),
                    sort=cell.difference.mean,
                    ref=reference(cell),
                ),
                Item(words.difference(relative, 2), sort=relative.mean) if relative else EMPTY,
                Item(str(cell.difference.n), sort=cell.difference.n),
                *((_p_item(cell.difference.p), _p_item(cell.adjusted)) if tests else ()),
                Item(cell.verdict, tone=_TONES.get(cell.verdict, "")),
            ]
        )
    notes = [
        "Relative change: percent of the baseline's mean over the same seeds, positive = better; "
        "the baseline's own uncertainty is not part of the interval.",
        "Intervals are for one comparison each, not corrected for their number.",
    ]
    if table.tests:
        notes.append(
            f"p: exact sign-flip test on pairs, from six seeds on. Holm: over the {table.tests} "
            "tests of this table."
        )
        best = min(
            stats.smallest_reachable_p(cell.difference.n)
            for cell in cells
            if cell.difference and cell.difference.p is not None
        )
        if best * table.tests > stats.ALPHA:
            enough = stats.seeds_for_a_test(table.tests)
            notes.append(
                f"With these seeds p cannot fall below {best:.2g}, so nothing in a family of "
                f"{table.tests} can be rejected: at least {enough} seeds are needed for a test."
            )
    else:
        notes.append(
            "No tests: below six seeds no exact paired test can reach 0.05 "
            "(five seeds 0.0625, six 0.031, eight 0.0078). Verdicts rest on t-intervals at "
            f"Bonferroni's level over the {len(cells)} comparisons of this table."
        )
    caption = (
        f"This variant minus {BASELINE}, paired by seed, in units of the metric, with 95 % "
        "t-interval."
    )
    title = f"Difference to {BASELINE}"
    return titled(table, "difference", title, caption, header, rows, notes)


_TONES = {"better": "better", "worse": "worse"}


def _p_item(p: float | None) -> Item:
    if p is None:
        return EMPTY
    return Item(words.p_value(p).removeprefix("= "), sort=p)


def selection_gap(table: GroupStats) -> Table | None:
    """Best-on-test minus honest value, None if no run has it."""
    made = _grid(table, SELECTION_GAP)
    if made is None:
        return None
    rows, records = made
    header = ("attention", *(column.label for column in table.group.columns))
    caption = (
        "Best test value over all epochs minus the value of the honestly selected epoch: what "
        f"selecting on the test split would add. {SPREAD}"
    )
    return titled(table, "selection_gap", "Selection gap", caption, header, rows, (), records)


def _grid(table: GroupStats, metric: str) -> tuple[list[list[Item]], list[dict[str, Value]]] | None:
    rows: list[list[Item]] = [[Item(variant)] for variant in table.group.variants]
    records: list[dict[str, Value]] = []
    for column in table.group.columns:
        samples = {
            variant: stats.describe(list(column.cells[variant].values(metric).values()))
            for variant in table.group.variants
        }
        unit = column.metrics().get(metric, MetricInfo(None)).unit
        decimals = words.decimals_for(unit, [s for s in samples.values() if s])
        for row, (variant, sample) in zip(rows, samples.items(), strict=True):
            row.append(sample_item(sample, decimals))
            records.append(sample_record(column, variant, metric, unit, sample))
    return (rows, records) if any(record["n"] for record in records) else None


def metrics(table: GroupStats) -> Table | None:
    """All other metrics of the results."""
    return _wide(
        table,
        "metrics",
        "All metrics",
        f"Every metric of the results. {SPREAD}",
        lambda name, column: not name.startswith("telemetry/") and name != SELECTION_GAP,
    )


def telemetry(table: GroupStats) -> Table | None:
    """Last readings of the attention's inner quantities."""
    return _wide(
        table,
        "telemetry",
        "Attention readings at the end",
        f"Maxima and means over layers and heads. {SPREAD}",
        lambda name, column: name.startswith("telemetry/"),
    )


def _wide(
    table: GroupStats,
    name: str,
    title: str,
    caption: str,
    wanted: Callable[[str, Column], bool],
) -> Table | None:
    names: dict[str, MetricInfo] = {}
    for column in table.group.columns:
        for metric, info in column.metrics().items():
            if wanted(metric, column):
                names.setdefault(metric, info)
    if not names:
        return None
    rows: list[list[Item]] = []
    records: list[dict[str, Value]] = []
    for column in table.group.columns:
        columns: list[list[Item]] = []
        for metric, info in names.items():
            samples = [
                stats.describe(list(column.cells[variant].values(metric).values()))
                for variant in table.group.variants
            ]
            decimals = words.decimals_for(info.unit, [s for s in samples if s])
            columns.append([sample_item(sample, decimals) for sample in samples])
            records += [
                sample_record(column, variant, metric, info.unit, sample)
                for variant, sample in zip(table.group.variants, samples, strict=True)
            ]
        for variant, *items in zip(table.group.variants, *columns, strict=True):
            if any(item.sort is not None for item in items):
                rows.append([Item(column.label), Item(variant), *items])
    header = [
        words.metric_label(metric.removeprefix("telemetry/"), info.unit, info.higher_is_better)
        for metric, info in names.items()
    ]
    notes = [f"{metric}: {info.note}" for metric, info in names.items() if info.note]
    header = ["data set", "attention", *header]
    return titled(table, name, title, caption, header, rows, notes, records, folded=True)


def missing(tables: Sequence[GroupStats]) -> list[tuple[Cell, GroupStats, str]]:
    """Cells that more runs could fill, with the command that does."""
    return [
        (cell, table, missing_command(cell, table.group))
        for table in tables
        for column in table.group.columns
        for cell in column.cells.values()
        if cell.missing()
    ]
