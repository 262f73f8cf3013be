"""What a variant costs: parameters, time and memory, as ratios to the baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reports import words
from reports.analysis import GroupStats
from reports.groups import Cell
from reports.parts import EMPTY, titled
from reports.rows import BASELINE, Row
from reports.table import Item, Table, Value

MARK = "*"


@dataclass(frozen=True)
class Cost:
    """What a variant costs on one data set: medians over seeds, None where not measured."""

    parameters: float | None
    attention_parameters: float | None
    seconds_per_step: float | None
    peak_memory: float | None
    places: frozenset[tuple[str, int | None]]

    @classmethod
    def of(cls, cell: Cell) -> Cost:
        """Costs of the finished runs of a cell."""
        return cls(
            _median(cell.done, lambda row: row.parameters_total),
            _median(cell.done, lambda row: row.parameters_attention),
            _median(cell.done, lambda row: row.seconds_per_step),
            _median(cell.done, lambda row: row.peak_memory_bytes),
            frozenset((row.device, row.threads) for row in cell.done),
        )


NOTHING = Cost(None, None, None, None, frozenset())


def _median(rows: Sequence[Row], get: Callable[[Row], float | None]) -> float | None:
    values = sorted(value for row in rows if (value := get(row)) is not None)
    if not values:
        return None
    middle = len(values) // 2
    return float(values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2)


def cost(table: GroupStats) -> Table | None:
    """Parameters, time and memory with their ratio to the baseline of the same data set."""
    header = (
        "data set", "attention", "parameters", "ratio", "in attention", "time per step", "ratio",
        "peak memory", "ratio",
    )  # fmt: skip
    rows: list[list[Item]] = []
    records: list[dict[str, Value]] = []
    places: set[str] = set()
    for column in table.group.columns:
        base = Cost.of(column.cells[BASELINE]) if BASELINE in column.cells else NOTHING
        for variant in table.group.variants:
            cell = column.cells[variant]
            if not cell.done:
                continue
            own = Cost.of(cell)
            places |= {place_of(*place) for place in own.places}
            # Times on different devices say nothing about the variant.
            fair = base if base.places == own.places else NOTHING
            ratios = (
                _ratio(own.parameters, base.parameters),
                _ratio(own.seconds_per_step, fair.seconds_per_step),
                _ratio(own.peak_memory, fair.peak_memory),
            )
            rows.append(
                [
                    Item(column.label),
                    Item(variant),
                    _amount(own.parameters, lambda v: f"{v:,.0f}"),
                    _ratio_item(ratios[0]),
                    _amount(own.attention_parameters, lambda v: f"{v:,.0f}"),
                    _amount(own.seconds_per_step, words.duration),
                    _ratio_item(ratios[1]),
                    _amount(own.peak_memory, words.memory),
                    _ratio_item(ratios[2]),
                ]
            )
            records.append(
                {
                    "dataset": column.dataset,
                    "attention": variant,
                    "parameters": own.parameters,
                    "parameters_ratio": ratios[0],
                    "parameters_attention": own.attention_parameters,
                    "seconds_per_step": own.seconds_per_step,
                    "seconds_per_step_ratio": ratios[1],
                    "peak_memory_bytes": own.peak_memory,
                    "peak_memory_ratio": ratios[2],
                }
            )
    if not rows:
        return None
    caption = (
        f"Medians over seeds; ratios to {BASELINE} on the same data set, device and threads; "
        f"{MARK} marks ratios above 1.10."
    )
    notes = (
        f"Runs on {words.listing(sorted(places))}. They share the machine with others, so times "
        "are rough; the speed command measures them.",
    )
    return titled(table, "cost", "Cost", caption, header, rows, notes, records)


def _ratio(own: float | None, base: float | None) -> float | None:
    return own / base if own is not None and base else None


def _ratio_item(value: float | None) -> Item:
    if value is None:
        return EMPTY
    return Item(words.ratio(value), sort=value, tone="worse" if value > 1.10 else "")


def _amount(value: float | None, form: Callable[[float], str]) -> Item:
    if value is None:
        return EMPTY
    return Item(form(value), sort=value)


def place_of(device: str, threads: int | None) -> str:
    """Where runs were made, in words."""
    name = device or "unknown"
    return name if threads is None else f"{name}, {words.count(threads, 'thread')}"
