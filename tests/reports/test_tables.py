"""Tables: numbers, words, bold, marks, notes and escapes."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from reports import across, analysis, plots, published, tables, words
from reports.analysis import GroupStats, evaluate
from reports.costs import cost
from reports.frame import load
from reports.groups import arrange
from reports.stats import Interval, Sample
from reports.table import Item, Table, tex_escape, to_csv, to_latex, to_markdown
from tests.reports.build_store import RunSpec, grid, sample_store, write_run


@pytest.fixture
def evaluated(tmp_path: Path) -> list[GroupStats]:
    return [evaluate(group) for group in arrange(load(sample_store(tmp_path)).rows)]


def accuracies(root: Path, values: dict[str, list[float]], **fixed: str) -> GroupStats:
    """A table with the given accuracies by variant and seed."""
    for attention, numbers in values.items():
        for seed, value in enumerate(numbers):
            write_run(
                root,
                RunSpec(
                    attention=attention, seed=seed, values={"test/accuracy": value}, **fixed
                ),
            )  # fmt: skip
    (group,) = arrange(load(root).rows)
    return evaluate(group)


def texts(table: Table, row: int) -> list[str]:
    return [item.printed for item in table.rows[row]]


def test_a_cell_is_mean_sd_and_n(tmp_path: Path) -> None:
    table = tables.quality(accuracies(tmp_path, {"standard": [97.0, 98.0, 99.0]}))
    assert texts(table, 0) == ["standard", "98.00 ± 1.00 (3)"]


def test_one_run_is_a_table(tmp_path: Path) -> None:
    stats = accuracies(tmp_path, {"standard": [97.0]})
    assert texts(tables.quality(stats), 0) == ["standard", "97.00 (1)"]
    assert tables.differences(stats) is None
    assert not tables.quality(stats).rows[0][1].bold


def test_without_the_baseline_nothing_is_compared(tmp_path: Path) -> None:
    stats = accuracies(tmp_path, {"quest": [97.0, 98.0], "qnorm": [96.0, 98.5]})
    assert tables.differences(stats) is None
    assert stats.cells[("quest", "JapaneseVowels")].verdict == "no interval"


def test_outcomes_stand_in_the_cells(evaluated: list[GroupStats]) -> None:
    rows = {row[0].text: row for row in tables.quality(evaluated[0]).rows}
    assert rows["qknorm_ds"][2].printed == "oom"
    assert rows["qnorm"][1].printed.endswith("(2), diverged 1/3")
    assert rows["qknorm_hs"][1].printed.endswith("(2), 2/3 seeds")


def test_incomplete_cells_are_never_bold_and_enter_no_average(
    evaluated: list[GroupStats],
) -> None:
    table = tables.quality(evaluated[0])
    rows = {row[0].text: row for row in table.rows}
    assert not rows["qnorm"][1].bold
    assert rows["qnorm"][-1].text == "–"
    assert "No average for qnorm, qknorm_hs and qknorm_ds" in " ".join(table.notes)
    assert rows["standard"][-1].sort == pytest.approx(
        sum(evaluated[0].cells[("standard", c.label)].sample.mean for c in columns(evaluated)) / 3  # type: ignore[union-attr]
    )


def columns(evaluated: list[GroupStats]) -> tuple[analysis.Column, ...]:
    return evaluated[0].group.columns


def test_caveats_of_the_protocol_stand_with_the_table(evaluated: list[GroupStats]) -> None:
    assert "test/accuracy: selected on the test split" in tables.quality(evaluated[1]).notes
    assert "selected on" not in " ".join(tables.quality(evaluated[0]).notes)


def test_differences_name_p_only_from_six_seeds_on(evaluated: list[GroupStats]) -> None:
    three, six = tables.differences(evaluated[0]), tables.differences(evaluated[1])
    assert three is not None
    assert six is not None
    assert "p" not in three.header
    assert "p" in six.header
    assert any("No tests" in note for note in three.notes)
    assert any("nothing in a family of 2" in note for note in six.notes)


def test_verdicts(tmp_path: Path) -> None:
    base = [90.0, 91.0, 92.0, 90.5, 91.5, 92.5, 90.2, 91.2]
    stats = accuracies(
        tmp_path,
        {
            "standard": base,
            "quest": [x + 1 + 0.1 * (i % 3) for i, x in enumerate(base)],
            "qnorm": [x - 1 - 0.1 * (i % 3) for i, x in enumerate(base)],
            "qknorm": [x + (-1) ** i for i, x in enumerate(base)],
            "qknorm_hs": [x + 1 for x in base],
            "qknorm_ds": base,
        },
    )
    found = {v: stats.cells[(v, "JapaneseVowels")].verdict for v in stats.group.variants}
    assert found == {
        "standard": "baseline",
        "quest": "better",
        "qnorm": "worse",
        "qknorm": "not distinguishable",
        "qknorm_hs": "no interval",
        "qknorm_ds": "not distinguishable",
    }
    assert stats.tests == 5


def test_holm_can_overrule_an_interval(tmp_path: Path) -> None:
    base = [90.0, 91.0, 92.0, 90.5, 91.5, 92.5]
    better = [x + 1 + 0.1 * (i % 3) for i, x in enumerate(base)]
    values = {"standard": base, "quest": better, "qnorm": [x - 0.01 * x % 1 for x in base]}
    cell = accuracies(tmp_path, values).cells[("quest", "JapaneseVowels")]
    assert cell.difference is not None
    assert cell.difference.p == 2 / 64
    assert cell.adjusted == 4 / 64
    assert cell.verdict == "not after correction"


def test_few_seeds_do_not_make_bolder_claims_than_many(tmp_path: Path) -> None:
    """Symptom: with two seeds and thirteen variants one was "worse" by chance, uncorrected."""
    base = [8.0, 13.0]
    values = {"standard": base, "quest": [5.5, 10.2]}
    alone = accuracies(tmp_path / "alone", values).cells[("quest", "JapaneseVowels")]
    assert alone.difference is not None
    assert alone.difference.p is None
    assert alone.verdict == "worse"
    others = {name: [8.0, 14.0] for name in ("qnorm", "qknorm", "qknorm_hs", "qknorm_ds")}
    among = accuracies(tmp_path / "among", values | others).cells[("quest", "JapaneseVowels")]
    assert among.difference == alone.difference
    assert among.verdict == "not after correction"


def test_lower_is_better_turns_verdicts_and_relative_change(tmp_path: Path) -> None:
    for attention, values in {"standard": [1.0, 1.1, 1.2], "quest": [0.8, 0.91, 1.0]}.items():
        for seed, value in enumerate(values):
            primary = {"name": "test/nll", "higher_is_better": False, "unit": "nats"}
            spec = RunSpec(attention=attention, seed=seed, values={"test/nll": value})
            spec.result = {"primary_metric": primary}
            write_run(tmp_path, spec)
    (group,) = arrange(load(tmp_path).rows)
    cell = evaluate(group).cells[("quest", "JapaneseVowels")]
    assert cell.verdict == "better"
    assert cell.bold
    assert cell.relative is not None
    assert cell.relative.mean == pytest.approx(100 * 0.59 / 3.3)
    assert cell.in_test_samples() == ""


def test_differences_of_accuracy_are_told_in_test_samples(tmp_path: Path) -> None:
    stats = accuracies(tmp_path, {"standard": [90.0, 91.0], "quest": [91.0, 92.5]})
    cell = stats.cells[("quest", "JapaneseVowels")]
    assert cell.in_test_samples() == "+4.6 of 370 test samples"


def test_cost_ratios_and_the_mark(evaluated: list[GroupStats]) -> None:
    table = cost(evaluated[0])
    assert table is not None
    row = next(r for r in table.rows if (r[0].text, r[1].text) == ("JapaneseVowels", "qknorm_ds"))
    assert [item.text for item in row[2:]] == [
        "404,489", "1.00", "198,144", "12.9 ms", "1.16*", "478 MB", "1.16*",
    ]  # fmt: skip


def test_costs_of_other_devices_are_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path, RunSpec())
    other = {"seconds_per_step": 0.001, "device": "cuda", "threads": 1, "peak_memory_bytes": 1}
    write_run(tmp_path, RunSpec(attention="quest", result={"cost": other}))
    (group,) = arrange(load(tmp_path).rows)
    table = cost(evaluate(group))
    assert table is not None
    assert [table.rows[1][i].text for i in (3, 6, 8)] == ["1.00", "–", "–"]


def test_selection_gap(evaluated: list[GroupStats]) -> None:
    table = tables.selection_gap(evaluated[0])
    assert table is not None
    assert texts(table, 0)[1] == "0.60 ± 0.00 (3)"


def test_published_numbers_get_a_verdict_only_under_their_protocol(
    evaluated: list[GroupStats],
) -> None:
    other, same = (published.compare(table) for table in evaluated)
    assert other
    assert {found.verdict for found in other} == {"different protocol, not comparable"}
    assert all(found.interval is None for found in other)
    verdicts = {(f.cell.cell.dataset, f.published.attention): f.verdict for f in same}
    assert verdicts[("JapaneseVowels", "standard")] == "inside"
    assert verdicts[("Handwriting", "quest")] == "outside"
    (merged,) = [found for found in same if found.published.text == "42.00"]
    assert merged.published.source == "QUEST paper, Table A7 and A8"
    assert merged.published.remark == "selected on the test split"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "sample"}, "different data (sample)"),
        ({"budget": "short"}, "different budget (short)"),
        ({"protocol": "holdout"}, "different protocol"),
        ({"domain": "classification"}, "protocol of the paper not matched with one of ours"),
    ],
)
def test_published_numbers_are_held_against_equals_only(
    tmp_path: Path, change: dict[str, str], reason: str
) -> None:
    write_run(tmp_path, RunSpec(**({"protocol": "tslib"} | change)))  # type: ignore[arg-type]
    (group,) = arrange(load(tmp_path).rows)
    assert published.mismatch(group) == reason


def test_published_verdict_needs_spread(tmp_path: Path) -> None:
    stats = accuracies(tmp_path, {"standard": [98.0], "quest": [98.0, 98.0]}, protocol="tslib")
    found = {f.published.attention: f.verdict for f in published.compare(stats)}
    assert found == {
        "standard": "no interval: one seed of ours",
        "quest": "no interval: our 2 seeds are equal",
    }


def test_published_table_never_shares_a_column(evaluated: list[GroupStats]) -> None:
    table = published.published_numbers(evaluated[1])
    assert table is not None
    assert table.header[2:4] == ("ours", "published")
    assert not table.folded


def test_the_published_file_is_whole() -> None:
    text = (published.FOLDER / "quest_2026.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 370
    assert sum(row["outcome"] == "diverged" for row in rows) == 5
    loaded = [number for numbers in published.load().values() for number in numbers]
    assert sum(number.value is None for number in loaded) == 5


def test_summary_over_tasks_uses_complete_variants_and_names_the_others(
    evaluated: list[GroupStats],
) -> None:
    views, remarks = analysis.views(evaluated)
    table = across.across_table(views[0])
    assert table is not None
    assert [row[0].text for row in table.rows] == ["quest"]
    notes = " ".join(table.notes)
    assert "qnorm, qknorm_hs and qknorm_ds" in notes
    assert "no critical-difference diagram" in notes
    assert not remarks


def test_domains_are_summarised_together_if_each_has_one_table(tmp_path: Path) -> None:
    for domain in ("graph", "timeseries"):
        grid(tmp_path, ["A", "B"], ["standard", "quest"], 2, domain=domain)
    groups = [evaluate(group) for group in arrange(load(tmp_path).rows)]
    views, remarks = analysis.views(groups)
    assert [view.slug for view in views] == ["all_domains"]
    assert len(views[0].tasks()) == 4
    grid(tmp_path, ["A"], ["standard"], 2, protocol="tslib")
    views, remarks = analysis.views([evaluate(g) for g in arrange(load(tmp_path).rows)])
    assert "all_domains" not in [view.slug for view in views]
    assert "protocol=" in remarks[0]


def test_nothing_is_relative_to_a_baseline_of_zero(tmp_path: Path) -> None:
    for dataset in ("A", "B"):
        for attention, value in (("standard", 0.0), ("quest", 5.0)):
            for seed in range(2):
                values = {"test/accuracy": value + seed if value or dataset == "A" else 0.0}
                write_run(tmp_path, RunSpec(dataset, attention, seed, values=values))
    (group,) = arrange(load(tmp_path).rows)
    (view,), _ = analysis.views([evaluate(group)])
    assert view.rows[0].change is None
    table = across.across_table(view)
    assert table is not None
    assert table.rows[0][1].text == "–"
    assert any("mean of 0" in note for note in table.notes)
    assert plots.forest(view) is not None


def test_data_that_prove_nothing_say_so(tmp_path: Path) -> None:
    write_run(tmp_path, RunSpec(kind="synthetic"))
    (group,) = arrange(load(tmp_path).rows)
    assert "no evidence about any variant" in group.notes()[0]


def test_ranks_are_tested_only_with_enough_tasks(tmp_path: Path) -> None:
    names = [f"Set{number}" for number in range(7)]
    grid(tmp_path, names, ["standard", "quest", "qknorm_ds"], 2)
    (group,) = arrange(load(tmp_path).rows)
    (view,), _ = analysis.views([evaluate(group)])
    assert view.comparison is not None
    assert view.comparison.tasks == 7
    (fewer,) = arrange(load(tmp_path, {"dataset": frozenset(names[:6])}).rows)
    (view,), _ = analysis.views([evaluate(fewer)])
    assert view.comparison is None
    assert "at least 7 tasks" in view.note


def test_findings_are_sentences(tmp_path: Path) -> None:
    stats = accuracies(tmp_path, {"standard": [98.0, 97.0, 98.5], "quest": [98.4, 97.1, 98.9]})
    (finding,) = across.findings(stats)
    assert finding.text == ("quest − standard on JapaneseVowels: +0.30 [−0.13, 0.73] points, n = 3")
    assert finding.verdict == "not distinguishable"


def test_many_findings_are_counted(tmp_path: Path) -> None:
    grid(tmp_path, [f"Set{number}" for number in range(9)], ["standard", "quest", "qnorm"], 2)
    (group,) = arrange(load(tmp_path).rows)
    found = across.findings(evaluate(group))
    assert [finding.text for finding in found] == [
        "quest against standard on 9 data sets", "qnorm against standard on 9 data sets",
    ]  # fmt: skip


TRICKY = "a_b & 50% #1 {x} $y$ ~z^2 \\ <q> | ± − ↑ [n]"


def test_latex_escapes_everything_that_latex_reads() -> None:
    escaped = tex_escape(TRICKY)
    assert escaped == (
        r"a\_b \& 50\% \#1 \{x\} \$y\$ \textasciitilde{}z\textasciicircum{}2 \textbackslash{} "
        r"\textless{}q\textgreater{} \textbar{} $\pm$ $-$ $\uparrow$ {[}n{]}"
    )
    assert escaped.isascii()


def test_latex_table_is_balanced_and_ascii(evaluated: list[GroupStats]) -> None:
    for table in tables.tables_of(evaluated[0]):
        text = to_latex(table)
        assert text.count(r"\begin{") == text.count(r"\end{") == 2
        assert text.isascii()
        body = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
        widths = {line.replace(r"\&", "").count("&") for line in body}
        assert widths == {len(table.header) - 1}


def test_markdown_escapes_its_own_marks() -> None:
    table = Table("n", "T", "C", "x", ("a|b", "c"), ((Item("p_q"), Item("1|2", bold=True)),))
    assert r"| p\_q | **1\|2** |" in to_markdown(table)
    assert r"| a\|b | c |" in to_markdown(table)


def test_csv_keeps_every_digit() -> None:
    text = to_csv([{"a": 0.1 + 0.2, "b": None, "c": True, "d": "x,y"}])
    assert text == 'a,b,c,d\n0.30000000000000004,,true,"x,y"\n'


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [(-0.004, 2, "0.00"), (-1.5, 1, "−1.5"), (0.0, 2, "0.00"), (1.005, 1, "+1.0")],
)
def test_signs(value: float, decimals: int, text: str) -> None:
    assert words.signed(value, decimals) == text


def test_decimals_follow_the_spread() -> None:
    assert words.decimals_for("%", []) == 2
    assert words.decimals_for("", [Sample(3, 0.07, 0.0012)]) == 4
    assert words.decimals_for("", [Sample(3, 24.0, 0.31)]) == 2
    assert words.decimals_for("", [Sample(1, 0.0712, None)]) == 5
    assert words.decimals_for("", []) == 2


def test_small_words() -> None:
    assert words.span([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert words.listing(["a", "b", "c"]) == "a, b and c"
    assert words.interval(Interval(-1.0, 0.5), 1) == "[−1.0, 0.5]"
    assert words.memory(1.2e9) == "1.20 GB"
    assert words.duration(0.0115) == "11.5 ms"
    assert words.p_value(0.0004) == "< 0.001"
