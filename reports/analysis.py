"""Groups with their statistics: what every table, figure and sentence is made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from reports import ranks, stats, words
from reports.groups import Cell, Column, Group
from reports.rows import BASELINE, variant_order

Verdict = Literal[
    "baseline", "better", "worse", "not distinguishable", "not after correction", "no interval",
    "no result",
]  # fmt: skip


@dataclass(frozen=True)
class CellStats:
    """One cell, evaluated.

    Attributes:
        cell: the runs.
        column: where it stands.
        sample: of the primary metric, None without a finished run.
        difference: to the baseline by seed, None for the baseline itself or without pairs.
        adjusted: Holm-adjusted p over all tests of the table.
        bold: not distinguishable from the best of the column.
        verdict: of the comparison with the baseline.
        decimals: of the column.
    """

    cell: Cell
    column: Column
    sample: stats.Sample | None
    difference: stats.Difference | None
    adjusted: float | None
    bold: bool
    verdict: Verdict
    decimals: int

    @property
    def variant(self) -> str:
        """Label of the row."""
        return self.cell.variant

    @property
    def relative(self) -> stats.Difference | None:
        """The difference in percent of the baseline, positive = better."""
        if self.difference is None:
            return None
        factor = stats.relative_change(self.difference, bool(self.column.info.higher_is_better))
        if factor is None:
            return None
        return _scaled(self.difference, factor)

    def in_test_samples(self) -> str:
        """What a difference of accuracies is worth in test samples, empty for other metrics."""
        size, difference = self.column.test_size, self.difference
        if size is None or difference is None or self.column.info.unit != "%":
            return ""
        if "accuracy" not in self.column.primary:
            return ""
        return f"{words.signed(difference.mean / 100 * size, 1)} of {size:,} test samples"


@dataclass(frozen=True)
class GroupStats:
    """One table, evaluated.

    Attributes:
        group: the runs.
        cells: by (variant, column label).
        tests: number of tests that Holm's correction is over.
        complete: variants with every seed of every column done.
    """

    group: Group
    cells: dict[tuple[str, str], CellStats]
    tests: int
    complete: tuple[str, ...]

    def column(self, column: Column) -> list[CellStats]:
        """Cells of a column in the order of variants."""
        return [self.cells[(variant, column.label)] for variant in self.group.variants]

    def comparisons(self) -> list[CellStats]:
        """Cells that are compared with the baseline, column by column."""
        return [
            cell
            for column in self.group.columns
            for cell in self.column(column)
            if cell.difference is not None
        ]


def evaluate(group: Group) -> GroupStats:
    """All statistics of one table."""
    drafts: list[tuple[Cell, Column, stats.Sample | None, stats.Difference | None]] = []
    for column in group.columns:
        base = column.cells.get(BASELINE)
        reference = base.values(column.primary) if base else {}
        for variant in group.variants:
            cell = column.cells[variant]
            values = cell.values(column.primary)
            difference = None
            if variant != BASELINE:
                difference = stats.paired_difference(
                    values, reference, generator=np.random.default_rng(0)
                )
            drafts.append((cell, column, stats.describe(list(values.values())), difference))
    tested = [d for _, _, _, d in drafts if d is not None and d.p is not None]
    adjusted = {
        id(d): p
        for d, p in zip(tested, stats.holm([d.p for d in tested if d.p is not None]), strict=True)
    }
    bold = {column.label: _bold(column) for column in group.columns}
    decimals = {
        column.label: words.decimals_for(
            column.info.unit, [s for _, c, s, _ in drafts if c is column and s is not None]
        )
        for column in group.columns
    }
    compared = sum(d is not None for _, _, _, d in drafts)
    cells = {}
    for cell, column, sample, difference in drafts:
        p = adjusted.get(id(difference))
        cells[(cell.variant, column.label)] = CellStats(
            cell,
            column,
            sample,
            difference,
            p,
            cell.variant in bold[column.label],
            _verdict(cell, sample, difference, p, compared, column.info.higher_is_better),
            decimals[column.label],
        )
    complete = tuple(
        variant
        for variant in group.variants
        if all(column.cells[variant].complete for column in group.columns)
    )
    return GroupStats(group, cells, len(tested), complete)


def _bold(column: Column) -> frozenset[str]:
    if column.info.higher_is_better is None:
        return frozenset()
    whole = {
        variant: cell.values(column.primary)
        for variant, cell in column.cells.items()
        if cell.complete
    }
    return stats.not_distinguishable_from_best(whole, column.info.higher_is_better)


def _verdict(
    cell: Cell,
    sample: stats.Sample | None,
    difference: stats.Difference | None,
    adjusted: float | None,
    compared: int,
    higher_is_better: bool | None,
) -> Verdict:
    """Better or worse needs an interval off zero that stands among all comparisons of the table.

    Where a test is possible, that is Holm's to say. With fewer pairs, the interval itself has to
    leave out zero at Bonferroni's level: fewer seeds must not make bolder claims.
    """
    if sample is None:
        return "no result"
    if cell.variant == BASELINE:
        return "baseline"
    if difference is not None and difference.constant and difference.mean == 0:
        return "not distinguishable"
    if difference is None or difference.interval is None:
        return "no interval"
    if difference.interval.covers(0.0):
        return "not distinguishable"
    stands = difference.stands_among(compared) if adjusted is None else adjusted <= stats.ALPHA
    if not stands:
        return "not after correction"
    return "better" if (difference.mean > 0) == bool(higher_is_better) else "worse"


def _scaled(difference: stats.Difference, factor: float) -> stats.Difference:
    return stats.Difference(
        difference.n,
        difference.mean * factor,
        None if difference.sd is None else abs(factor) * difference.sd,
        None if difference.interval is None else difference.interval.scaled(factor),
        difference.p,
        difference.reference,
    )


@dataclass(frozen=True)
class AcrossRow:
    """One variant over all tasks of a view.

    Attributes:
        variant: label.
        change: interquartile mean of the relative change to the baseline, percent; None where
            the baseline's mean is 0 on a task, so that no change is relative to it.
        improvement: probability that a run beats a run of the baseline.
        better: tasks on which the verdict is better.
        worse: tasks on which the verdict is worse.
        average_rank: over the tasks, 1 is best.
    """

    variant: str
    change: ranks.Aggregate | None
    improvement: ranks.Aggregate
    better: int
    worse: int
    average_rank: float | None


@dataclass(frozen=True)
class View:
    """Tasks that may be looked at together.

    Attributes:
        slug: for file names.
        title: for headings.
        tables: that the tasks come from.
        rows: variants that are complete on every task, without the baseline.
        omitted: variants that are not.
        comparison: ranks with exact tests, None where no pair could be told apart.
        note: about the ranks.
    """

    slug: str
    title: str
    tables: tuple[GroupStats, ...]
    rows: tuple[AcrossRow, ...]
    omitted: tuple[str, ...]
    comparison: ranks.RankComparison | None
    note: str

    def tasks(self) -> list[tuple[GroupStats, Column]]:
        """Columns of all tables."""
        return [(table, column) for table in self.tables for column in table.group.columns]


def views(tables: Sequence[GroupStats]) -> tuple[list[View], list[str]]:
    """Sets of tasks to summarise over, and why some were not formed.

    Kinds of data and budgets are never mixed. A domain with several tables (protocols, recipes)
    would enter a summary several times with the same data sets, so its tables stay apart.
    """
    pools: dict[tuple[str, str], list[GroupStats]] = {}
    for table in tables:
        pools.setdefault((table.group.key.kind, table.group.key.budget), []).append(table)
    found, remarks = [], []
    for (kind, budget), pool in sorted(pools.items()):
        domains = {table.group.key.domain for table in pool}
        if len(domains) == len(pool) > 1:
            slug = f"all_domains-{budget}-{kind}" if len(pools) > 1 else "all_domains"
            title = f"{words.listing(sorted(domains))} ({kind} data, budget {budget})"
            found.append(_view(slug, title, pool))
            continue
        if len(domains) > 1:
            remarks.append(
                f"No summary over domains of {kind} data with budget {budget}: a domain has "
                "several tables. Choose one with protocol=..., recipe=... of the report command."
            )
        found += [
            _view(t.group.slug, f"{t.group.key.title()} ({t.group.key.details()})", [t])
            for t in pool
        ]
    return [view for view in found if len(view.tasks()) > 1 and view.tables], remarks


def _view(slug: str, title: str, tables: Sequence[GroupStats]) -> View:
    variants = sorted({v for table in tables for v in table.group.variants}, key=variant_order)
    complete = [v for v in variants if all(v in table.complete for table in tables)]
    tasks = [(table, column) for table in tables for column in table.group.columns]
    usable = all(column.info.higher_is_better is not None for _, column in tasks)
    omitted = tuple(v for v in variants if v not in complete)
    if not usable or BASELINE not in complete or len(complete) < 2:
        note = "No variant besides the baseline is complete on every task."
        return View(slug, title, tuple(tables), (), omitted, None, note)
    means = np.array(
        [
            [_mean(table.cells[(v, column.label)]) * _sign(column) for v in complete]
            for table, column in tasks
        ]
    )
    average = ranks.rank_data(means).mean(0)
    needed = ranks.tasks_needed(len(complete))
    comparison, note = None, ""
    if len(tasks) >= needed:
        comparison = ranks.compare_ranks(complete, means)
        if len(complete) > 2:
            test = ranks.friedman(means)
            distance = ranks.nemenyi_critical_difference(len(complete), len(tasks))
            note = (
                f"Friedman: chi-square {test.statistic:.2f}, p {words.p_value(test.p)}. "
                f"Nemenyi's critical difference would be {distance:.2f} ranks; the diagram uses "
                "exact Wilcoxon tests with Holm's correction, which are sharper."
            )
    else:
        note = (
            f"Ranks are descriptive: with {words.count(len(complete), 'variant')} at least "
            f"{needed} tasks are needed before any pair can be told apart (exact Wilcoxon tests, "
            f"Holm); there are {len(tasks)}. So no critical-difference diagram."
        )
    rows = []
    for index, variant in enumerate(complete):
        if variant == BASELINE:
            continue
        cells = [table.cells[(variant, column.label)] for table, column in tasks]
        rows.append(_across(variant, cells, tables, tasks, float(average[index])))
    return View(slug, title, tuple(tables), tuple(rows), omitted, comparison, note)


def _across(
    variant: str,
    cells: Sequence[CellStats],
    tables: Sequence[GroupStats],
    tasks: Sequence[tuple[GroupStats, Column]],
    average_rank: float,
) -> AcrossRow:
    changes, pairs = [], []
    for cell, (_, column) in zip(cells, tasks, strict=True):
        ours = cell.cell.values(column.primary)
        reference = column.cells[BASELINE].values(column.primary)
        seeds = sorted(ours.keys() & reference.keys())
        left = np.array([ours[seed] for seed in seeds]) * _sign(column)
        right = np.array([reference[seed] for seed in seeds]) * _sign(column)
        pairs.append((left, right))
        scale = abs(float(right.mean()))
        if scale:
            changes.append(100 * (left - right) / scale)
    verdicts = [cell.verdict for cell in cells]
    return AcrossRow(
        variant,
        ranks.aggregate_change(changes, np.random.default_rng(0))
        if len(changes) == len(cells)
        else None,
        ranks.aggregate_improvement(pairs, np.random.default_rng(0)),
        verdicts.count("better"),
        verdicts.count("worse"),
        average_rank,
    )


def _mean(cell: CellStats) -> float:
    assert cell.sample is not None
    return cell.sample.mean


def _sign(column: Column) -> float:
    return 1.0 if column.info.higher_is_better else -1.0
