"""The measuring instruments measure; what they find on this machine is nobody's pass or fail."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attention import registry
from benchmarks.config import default_domain
from benchmarks.plan import expand, parse, pending
from benchmarks.speed import cli, engine, layers, output, stores
from benchmarks.speed.measure import (
    Effort,
    Row,
    Spread,
    compare,
    pairs_of_times,
    peak_memory,
    time_limit,
)
from benchmarks.store import Store
from domains.contract import PhaseResult
from domains.speed_cases import ActionFailedError, SpeedCase, TimeLimit

EFFORT = Effort(seconds=0.0, min_pairs=31, sample_seconds=0.002)
MEGABYTE = 2**20


def sleep(seconds: float) -> Callable[[], None]:
    return lambda: time.sleep(seconds)


def test_identical_steps_have_a_ratio_of_one() -> None:
    pairs = pairs_of_times(sleep(0.002), sleep(0.002), device="cpu", effort=EFFORT)
    assert Spread.of([ours / theirs for theirs, ours in pairs]).median == pytest.approx(1, abs=0.3)


def test_a_slower_candidate_has_a_ratio_above_one() -> None:
    pairs = pairs_of_times(sleep(0.002), sleep(0.006), device="cpu", effort=EFFORT)
    assert Spread.of([ours / theirs for theirs, ours in pairs]).median > 1.8


def test_both_sides_are_measured_in_turns() -> None:
    order: list[str] = []
    effort = Effort(seconds=0.0, min_pairs=4, sample_seconds=0.0)
    pairs_of_times(
        lambda: order.append("a"), lambda: order.append("b"), device="cpu", effort=effort
    )
    assert "".join(order) == "aaabbb" + "ab" + "ba" + "ab" + "ba"


def test_peak_memory_counts_what_lives_at_the_same_time() -> None:
    def one_after_the_other() -> None:
        for _ in range(3):
            torch.empty(MEGABYTE, dtype=torch.uint8)

    def together() -> None:
        [torch.empty(MEGABYTE, dtype=torch.uint8) for _ in range(3)]

    assert peak_memory(one_after_the_other, device="cpu") == MEGABYTE
    assert peak_memory(together, device="cpu") == 3 * MEGABYTE


def test_peak_memory_is_above_what_is_held_already() -> None:
    held = {"x": torch.empty(0)}

    def replaces_what_it_held() -> None:
        held.pop("x", None)
        held["x"] = torch.empty(MEGABYTE, dtype=torch.uint8)
        torch.empty(MEGABYTE // 2, dtype=torch.uint8)

    assert peak_memory(replaces_what_it_held, device="cpu") == MEGABYTE // 2
    assert peak_memory(replaces_what_it_held, device="cpu") == MEGABYTE // 2


def test_explicit_scores_are_seen_in_the_peak() -> None:
    q = torch.randn(1, 1, 512, 8, requires_grad=True)
    scores = 512 * 512 * 4

    def explicit() -> None:
        q.grad = None
        ((q @ q.mT).softmax(-1) @ q).sum().backward()

    def fused() -> None:
        q.grad = None
        torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()

    assert peak_memory(explicit, device="cpu") > 2 * scores
    assert peak_memory(fused, device="cpu") < scores


def test_targets_are_judged_as_they_are_printed() -> None:
    def row(time_ratio: float, memory: int) -> Row:
        spread = Spread(time_ratio, time_ratio, time_ratio)
        return Row(
            "g", "n", "a", spread, 3, baseline_seconds=spread, ratio=spread, memory=memory,
            baseline_memory=100, time_target=1.03, memory_target=1.03,
        )  # fmt: skip

    assert row(1.034, 103).reached is True
    assert row(1.036, 103).reached is False
    assert row(1.0, 104).reached is False


def test_a_time_limit_is_judged_in_seconds() -> None:
    row = time_limit(TimeLimit("g", "n", lambda: sleep(0.01), limit=30.0))
    assert row.seconds.median >= 0.01
    assert row.reached is True


@pytest.mark.parametrize("variant", registry.names())
def test_every_variant_has_a_step_that_runs(variant: str) -> None:
    shape = layers.Shape(batch=2, tokens=5, dim=8, heads=2)
    layers.variant_step(variant, shape, "cpu")()()


def test_plain_layer_and_torch_layer_compute_what_the_suite_computes() -> None:
    from attention import MultiHeadAttention

    shape = layers.Shape(batch=2, tokens=5, dim=8, heads=2)
    x = shape.input("cpu")
    ours = MultiHeadAttention(8, 2)
    plain = layers.PlainLayer(8, 2)
    plain.load_state_dict(ours.state_dict())
    torch.testing.assert_close(plain(x), ours(x))
    theirs = layers.TorchLayer(shape)
    fused = MultiHeadAttention(8, 2, projection="fused")
    with torch.no_grad():
        fused.qkv_proj.weight.copy_(theirs.layer.in_proj_weight)
        fused.qkv_proj.bias.copy_(theirs.layer.in_proj_bias)
        fused.out_proj.load_state_dict(theirs.layer.out_proj.state_dict())
    torch.testing.assert_close(theirs(x), fused(x))


def test_the_command_writes_what_it_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = layers.Shape(batch=1, tokens=8, dim=8, heads=2)
    monkeypatch.setattr(layers, "shape_of", lambda tokens, divisor: tiny)
    assert cli.main(["part=layers", "attention=standard,quest", "quick=true"]) == 0
    printed = capsys.readouterr().out
    (as_json,) = (Path(os.environ["RESULTS_DIR"]) / "speed").glob("*.json")
    content = json.loads(as_json.read_text())
    assert content["provenance"]["threads"] == 1
    assert content["provenance"]["packages"]["torch"]
    names = [row["name"] for row in content["rows"]]
    assert names == ["standard N=8"] * 3 + ["quest N=8"] * 3 + ["standard N=8"] * 3
    table = as_json.with_suffix(".md").read_text()
    for row in content["rows"]:
        ratio = f"{row['ratio']['median']:.3f}"
        assert ratio in printed
        assert f"| {ratio} |" in table


def test_a_case_is_compared_in_time_and_memory() -> None:
    def allocate(megabytes: int) -> Callable[[], Callable[[], object]]:
        return lambda: lambda: torch.ones(megabytes * MEGABYTE, dtype=torch.uint8)

    case = SpeedCase("g", "n", allocate(1), allocate(2), against="half", memory_target=1.5)
    row = compare(case, device="cpu", effort=Effort(seconds=0, min_pairs=3, sample_seconds=0))
    assert row.memory_ratio == 2.0
    assert row.reached is False
    assert output.cells(row)[-2:] == ("– / ≤ 1.50", "no")
    assert "tokens" not in output.cells(row)[1]


def test_both_sides_are_built_anew_for_every_round_and_first_in_turns() -> None:
    built: list[str] = []

    def side(name: str) -> Callable[[], Callable[[], object]]:
        return lambda: built.append(name) or int  # type: ignore[func-returns-value]

    case = SpeedCase("g", "n", side("baseline"), side("candidate"), against="", memory=False)
    row = compare(case, device="cpu", effort=Effort(0.0, min_pairs=7, sample_seconds=0, rounds=3))
    assert built == ["baseline", "candidate", "candidate", "baseline", "baseline", "candidate"]
    assert row.samples == 9


def test_a_case_of_slow_steps_ends_early() -> None:
    built: list[float | None] = []

    def side(target: float | None) -> Callable[[], Callable[[], object]]:
        return lambda: built.append(target) or int  # type: ignore[func-returns-value]

    for target, rounds in ((1.03, 2), (None, 1)):
        case = SpeedCase("g", "n", side(target), side(target), "", target, memory=False)
        row = compare(case, device="cpu", effort=Effort(min_pairs=12, most_seconds=0.0))
        assert row.samples == rounds
        assert built.count(target) == 2 * rounds


def test_cpu_time_leaves_out_what_only_waits() -> None:
    effort = replace(EFFORT, min_pairs=3, sample_seconds=0.0, clock=cli.CLOCKS["cpu"])
    (waiting, _), *_ = pairs_of_times(sleep(0.05), sleep(0.05), device="cpu", effort=effort)
    assert waiting < 0.01


def test_tokens_a_second_stand_beside_the_seconds() -> None:
    case = SpeedCase("g", "n", lambda: int, lambda: int, against="", memory=False, tokens=1024)
    row = compare(case, device="cpu", effort=Effort(seconds=0, min_pairs=3, sample_seconds=0))
    half = replace(row, seconds=Spread.of([0.5]))
    assert output.cells(half)[1] == "500.00 ms (2,048 tokens/s)"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("dmain=toy", "Did you mean 'domain'"),
        ("attention=quset", "Did you mean 'quest'"),
        ("part=layer", "Did you mean 'layers'"),
        ("quick=yes", "allowed are true, false"),
        ("threads=0", "at least 1"),
        ("device=gpu", "cpu, cuda"),
        ("clock=sun", "allowed are wall, cpu"),
        ("quick", "write quick=VALUE"),
    ],
)
def test_usage_errors_name_the_way_out(argument: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cli.parse([argument])


def test_what_cannot_be_measured_is_named_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> Callable[[], object]:
        raise ActionFailedError("no such thing")

    found = [TimeLimit("g", "broken", broken, 1.0), TimeLimit("g", "whole", lambda: sleep(0), 1.0)]
    monkeypatch.setattr(cli, "cases", lambda options: iter(found))
    assert cli.main([]) == 1
    captured = capsys.readouterr()
    assert "not measured: broken: no such thing" in captured.err
    assert "whole" in captured.out


def test_the_engine_trains_and_tests_as_often_as_the_bare_loop() -> None:
    result = engine.engine_fit(2, 3, "cpu")()
    assert isinstance(result, PhaseResult)
    assert (result.epochs, result.steps) == (2, 6)
    assert 0.0 <= result.metrics["test/accuracy"] <= 1.0
    assert isinstance(engine.bare_loop(2, 3, "cpu")(), float)


def test_a_made_up_store_is_read_as_finished_runs() -> None:
    runs = list(Store(stores.many_runs(datasets=2, variants=3, repeats=2)).runs())
    assert len(runs) == 12
    for run in runs:
        result, config = run.result(), run.config()
        assert run.status()["state"] == "done"
        assert result is not None
        assert (result["dataset"], result["attention"]) == (run.key.dataset, run.key.attention)
        assert (config["attention"]["name"], config["seed"]) == (run.key.attention, run.key.seed)


def test_finished_runs_are_not_planned_again() -> None:
    request = [f"domain={default_domain()}", "dataset=default", "attention=standard"]
    request += ["seeds=2", "synthetic=true"]
    assert not pending(expand(parse(request)), Store(stores.finished(request)))


@pytest.mark.gpu
def test_peak_memory_on_a_gpu() -> None:
    assert (
        peak_memory(lambda: torch.empty(MEGABYTE, dtype=torch.uint8, device="cuda"), device="cuda")
        == MEGABYTE
    )
