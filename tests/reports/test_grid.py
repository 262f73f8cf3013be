"""Grid studies: rates and their intervals, what is counted, what is compared, the way to CSV."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from reports.analysis import views
from reports.frame import load
from reports.grid import figures, published
from reports.grid.evaluation import StudyStats, VariantStats, evaluate_study
from reports.grid.families import families, family_table
from reports.grid.probes import read
from reports.grid.rates import Resampling
from reports.grid.studies import Study, arrange_studies
from reports.grid.tables import success
from reports.groups import arrange
from reports.report import build, text_files
from reports.rows import ReportError
from reports.table import to_markdown
from tests.reports.build_grid import (
    DECAYS,
    LRS,
    GridRun,
    small_store,
    study,
    write_grid_run,
    write_runs,
)
from tests.reports.build_store import grid as ordinary_store

PAIR = ("standard", "quest")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("grid"))


def studies(root: Path) -> list[Study]:
    return arrange_studies(load(root).rows)


def evaluated(root: Path) -> StudyStats:
    return evaluate_study(studies(root)[0])


# Rates and intervals


def test_the_interval_is_that_of_every_resample_counted_out() -> None:
    """With two seeds of each kind there are 4 x 4 resamples, all equally likely."""
    hits, runs = np.array([[4, 1], [2, 0]]), np.full((2, 2), 5)
    exact = []
    for data in product(range(2), repeat=2):
        for init in product(range(2), repeat=2):
            exact.append(100 * hits[np.ix_(data, init)].sum() / 20)
    rate = Resampling(2, 2).rate(hits, runs)
    assert rate is not None
    assert rate.percent == pytest.approx(35)
    assert rate.interval is not None
    # Each end has a probability of 1/16, more than the 2.5 % that may lie beyond the interval.
    assert (rate.interval.low, rate.interval.high) == (min(exact), max(exact)) == (0, 80)


def test_the_spread_is_that_of_data_and_initialisations_and_not_of_runs() -> None:
    """Where the data alone decide, thirty times the runs do not make the interval narrower."""
    hits = np.outer([1, 1, 0, 0, 0], np.ones(5, int))
    few = Resampling(5, 5).rate(hits, np.ones((5, 5), int))
    many = Resampling(5, 5).rate(30 * hits, np.full((5, 5), 30))
    assert few is not None
    assert many is not None
    assert few.interval == many.interval
    assert few.interval is not None
    assert (few.interval.low, few.interval.high) == (0, 80)
    binomial = 196 * np.sqrt(0.4 * 0.6 / many.n)
    assert many.interval.high - many.percent > 4 * binomial  # type: ignore[union-attr]


def test_equal_variants_differ_by_nothing_and_a_constant_shift_is_exact() -> None:
    generator = np.random.default_rng(3)
    hits, runs = generator.integers(0, 20, (5, 5)), np.full((5, 5), 30)
    same = Resampling(5, 5).difference(hits, hits, runs)
    shifted = Resampling(5, 5).difference(hits + 3, hits, runs)
    assert same is not None
    assert shifted is not None
    assert (same.points, same.interval.low, same.interval.high) == (0, 0, 0)  # type: ignore[union-attr]
    assert shifted.points == pytest.approx(10)
    assert shifted.interval.low == pytest.approx(10)  # type: ignore[union-attr]


@pytest.mark.parametrize(("comparisons", "verdict"), [(1, "better"), (13, "not after correction")])
def test_a_verdict_stands_among_all_comparisons(comparisons: int, verdict: str) -> None:
    """The interval of one comparison stays what it is; the claim needs more the more there are."""
    base, runs = np.full((5, 5), 10), np.full((5, 5), 30)
    ours = base + np.outer([6, 4, 3, 1, -1], np.ones(5, int))
    difference = Resampling(5, 5).difference(ours, base, runs, comparisons)
    assert difference is not None
    alone = Resampling(5, 5).difference(ours, base, runs)
    assert alone is not None
    assert difference.interval == alone.interval == alone.corrected
    assert difference.interval is not None
    assert difference.interval.low > 0
    stats = VariantStats("quest", None, difference, {}, (), np.zeros((1, 1)), (), complete=True)
    assert stats.verdict == verdict


def test_nothing_to_resample_gives_no_interval() -> None:
    one = np.ones((1, 1), int)
    rate = Resampling(1, 1).rate(one, one)
    assert rate is not None
    assert rate.interval is None
    assert Resampling(2, 2).rate(np.zeros((2, 2), int), np.zeros((2, 2), int)) is None


# What is counted


def test_rates_are_shares_of_the_runs_in_the_store(small: Path) -> None:
    (main, *_) = studies(small)
    stats = evaluate_study(main)
    for own in stats.variants:
        ended = [
            row
            for row in main.rows
            if row.variant == own.variant and row.state in ("done", "diverged")
        ]
        hits = [row for row in ended if row.metrics.get("test/correct") == 100]
        assert own.rate is not None
        assert (own.rate.hits, own.rate.n) == (len(hits), len(ended))
        assert sum(own.shares.values()) == pytest.approx(100)
    standard = stats.of("standard")
    assert standard.rate is not None
    assert standard.rate.n == 53
    assert standard.shares["diverged"] == pytest.approx(100 / 53)
    assert standard.words == ("diverged 1/54", "failed 1/54")
    assert not standard.complete
    assert stats.of("quest").complete


def test_pairs_are_the_runs_that_both_have(small: Path) -> None:
    difference = evaluated(small).of("quest").difference
    assert difference is not None
    assert difference.n == 53


def test_words_tell_what_diverged_and_what_is_missing(small: Path) -> None:
    text = to_markdown(success(evaluated(small)))
    assert "diverged 1/54, failed 1/54" in text
    assert "A run that diverged counts as a run without success." in text
    assert "Where runs are missing the rate is over the others" in text


def test_heat_map_cells_are_means_over_the_seeds(tmp_path: Path) -> None:
    write_runs(tmp_path, study(("quest",), LRS[:2], DECAYS[:2], 2, 3, epochs=2))
    (main,) = studies(tmp_path)
    cells = evaluate_study(main).of("quest").cells
    for (x, lr), (y, decay) in product(enumerate(LRS[:2]), enumerate(DECAYS[:2])):
        runs = study(("quest",), (lr,), (decay,), 2, 3)
        assert cells[x, y] == pytest.approx(
            100 * np.mean([run.outcome() == "correct" for run in runs])
        )
    assert (main.columns, main.lines) == (("0.0005", "0.001"), ("0", "0.01"))


def test_a_result_with_no_outcome_or_two_is_a_problem(tmp_path: Path) -> None:
    for seed, change in enumerate(({"test/correct": 100.0, "test/biased": 100.0}, {})):
        path = write_grid_run(tmp_path, GridRun(seed=seed, epochs=2)) / "result.json"
        result = json.loads(path.read_text())
        metrics = {
            n: 0.0 if n in result["grid"]["outcomes"] else v for n, v in result["metrics"].items()
        }
        path.write_text(json.dumps(result | {"metrics": metrics | change}))
    frame = load(tmp_path)
    assert frame.rows == ()
    assert ["exactly one outcome" in problem.message for problem in frame.problems] == [True, True]


def test_a_run_whose_place_is_unknown_is_a_problem(tmp_path: Path) -> None:
    write_runs(tmp_path, study(("quest",), LRS[:1], DECAYS[:1], 2, 1, epochs=2))
    lost = GridRun("quest", LRS[0], DECAYS[0], 1)
    (lost.path(tmp_path) / "config.yaml").write_text("domain: toy\n")
    frame = load(tmp_path)
    assert len(frame.rows) == 1
    assert "recipe.optimizer.lr" in frame.problems[0].message


def test_data_that_differ_under_one_seed_share_no_study(tmp_path: Path) -> None:
    write_runs(tmp_path, study(("quest",), LRS[:1], DECAYS[:1], 1, 2, epochs=2))
    path = GridRun("quest", LRS[0], DECAYS[0], 0, 1).path(tmp_path) / "result.json"
    result = json.loads(path.read_text())
    result["data"]["fingerprint"] = "sha256:other"
    path.write_text(json.dumps(result))
    with pytest.raises(ReportError, match=r"dataset.seed=0 read different data"):
        studies(tmp_path)


def test_runs_of_a_grid_stand_in_no_other_table(tmp_path: Path) -> None:
    ordinary_store(tmp_path, ["JapaneseVowels", "BasicMotions"], PAIR, 2, metrics_log=False)
    write_runs(tmp_path, study(PAIR, LRS[:1], DECAYS[:1], 2, 2, epochs=2))
    report = build(load(tmp_path), "command", draw=False)
    assert {row.domain for row in report.frame.rows} == {"timeseries", "toy"}
    assert [section.table.group.key.domain for section in report.sections] == ["timeseries"]
    assert views([section.table for section in report.sections])[0][0].slug == "timeseries-holdout"
    assert "toy" not in text_files(report)["runs.csv"]
    assert [section.study.slug for section in report.grids.studies] == ["toy-paper-grid"]


def test_unfinished_runs_stand_where_finished_ones_do(tmp_path: Path) -> None:
    runs = study(PAIR, LRS[:2], DECAYS[:1], 2, 2, epochs=2)
    write_runs(
        tmp_path, [replace(run, state="planned") if run.lr == LRS[1] else run for run in runs]
    )
    (main,) = studies(tmp_path)
    assert main.columns == ("0.0005", "0.001")
    assert main.words("quest") == ["not run 4/8"]
    assert arrange(load(tmp_path).rows) == []


# Missing runs


def test_one_command_fills_what_is_missing_of_a_variant(small: Path) -> None:
    main = studies(small)[0]
    assert main.missing_command("standard") == (
        "python run_all.py run domain=toy dataset=toy attention=standard protocol=paper "
        "recipe=50ep budget=full recipe.optimizer.lr=0.001 recipe.optimizer.weight_decay=0.01 "
        "dataset.seed=1 seed=1"
    )
    summary = text_files(build(load(small), "command", draw=False))["summary.md"]
    assert main.missing_command("standard") in summary
    assert "standard in toy-paper-grid (diverged 1/54, failed 1/54):" in summary


# Published numbers


def test_the_paper_is_quoted_beside_the_whole_grid_only(tmp_path: Path) -> None:
    variants = ("standard", "qknorm", "qknorm_hs")
    write_runs(tmp_path, study(variants, data_seeds=2, seeds=1, epochs=2))
    stats = evaluated(tmp_path)
    found = {
        (one.variant, one.value): one.verdict
        for one in published.compare(stats)
        if one.published.of_paper
    }
    assert found.keys() == {("standard", 25), ("qknorm", 0), ("qknorm_hs", 0)}
    assert found[("qknorm", 0)] == "inside"
    assert found[("qknorm_hs", 0)] == "outside"
    assert "| 25, " in to_markdown(success(stats))
    part = tmp_path / "part"
    write_runs(part, study(("standard",), LRS[1:3], data_seeds=2, seeds=2, epochs=2))
    assert published.compare(evaluated(part)) == []


def test_an_incomplete_grid_gets_no_verdict(tmp_path: Path) -> None:
    runs = study(("standard",), data_seeds=2, seeds=1, epochs=2)
    runs[0] = replace(runs[0], state="failed")
    write_runs(tmp_path, runs)
    verdicts = {one.verdict for one in published.compare(evaluated(tmp_path))}
    assert verdicts == {"our grid is incomplete"}


def test_other_settings_protocols_and_budgets_are_not_compared(tmp_path: Path) -> None:
    for number, change in enumerate(({"ratio": 3.0}, {"protocol": "post_norm"})):
        root = tmp_path / str(number)
        write_runs(root, study(("standard",), data_seeds=2, seeds=1, epochs=2, **change))
        assert published.compare(evaluated(root)) == []


# Families


def test_a_family_compares_at_the_points_that_all_studies_have(small: Path) -> None:
    found = studies(small)
    (family,) = families(found, read(small, load(small).rows))
    assert list(family.studies) == ["0.1", "1", "10"]
    assert family.points == {("0.001", "0.02"), ("0.0025", "0.02")}
    ours = family.members[("quest", "1")]
    runs = study(("quest",), LRS[1:3], DECAYS[2:3], 3, 3)
    assert ours.rate is not None
    assert (ours.rate.hits, ours.rate.n) == (sum(r.outcome() == "correct" for r in runs), 18)
    assert ours.quoted.success == 66
    assert family.members[("quest", "0.1")].quoted.attention == 0.39
    text = to_markdown(family_table(family))
    assert "reference 66" in text
    assert "learning rate 0.001 and weight decay 0.02, learning rate 0.0025" in text


def test_protocols_are_a_family(tmp_path: Path) -> None:
    for protocol in ("paper", "post_norm"):
        write_runs(tmp_path, study(PAIR, LRS[:1], DECAYS[:1], 2, 2, protocol=protocol, epochs=2))
    write_runs(tmp_path, study(PAIR, LRS[:1], DECAYS[:1], 2, 2, ratio=3.0, epochs=2))
    found = {family.name: family for family in families(studies(tmp_path), read(tmp_path, ()))}
    assert found.keys() == {"protocol", "recipe.qk_lr_ratio"}
    assert list(found["protocol"].studies) == ["paper", "post_norm"]
    drawn = figures.over_setting(found["protocol"])
    assert b">post_norm</text>" in drawn.svg


def test_a_store_with_one_ratio_alone_says_which(tmp_path: Path) -> None:
    write_runs(tmp_path, study(PAIR, LRS[:1], DECAYS[:1], 1, 1, ratio=3.0, epochs=2))
    (main,) = studies(tmp_path)
    assert main.key.setting == "recipe.qk_lr_ratio=3"
    assert (
        "recipe.qk_lr_ratio=3 " in main.missing_command("quest") if main.missing("quest") else True
    )
