"""One run: its result, its resumption, its failures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.plan import Planned, expand, parse
from benchmarks.runner import execute
from benchmarks.store import Run, RunEnded, Store
from domains.base import Domain
from domains.contract import Example


def planned(*arguments: str) -> Planned:
    defaults = ["dataset=JapaneseVowels", "attention=quest", "seed=3", "synthetic=true"]
    given = {argument.split("=")[0] for argument in arguments}
    (found,) = expand(parse([*(d for d in defaults if d.split("=")[0] not in given), *arguments]))
    return found


def never() -> str | None:
    return None


def after(batches: int) -> Callable[[], str | None]:
    """Ask for a stop before batch number `batches`, counted from 0."""
    seen = iter(range(10**9))
    return lambda: "interrupted" if next(seen) >= batches else None


def go(run: Run, plan: Planned, stop: Callable[[], str | None] = never) -> None:
    execute(run, plan.config.to_dict(), lambda event: None, stop)


def start(root: Path, plan: Planned) -> Run:
    return Store(root).prepare(plan.key, plan.config.to_dict())


def outcome(run: Run) -> dict[str, Any]:
    """Everything that two equal runs must agree on."""
    result = json.loads((run.path / "result.json").read_text())
    for measured in ("seconds", "seconds_per_step", "peak_memory_bytes"):
        del result["cost"][measured]
    records = [r for r in run.metrics() if "values" in r]
    weights = torch.load(next((run.path / "checkpoints").glob("*.pt")))
    return {"result": result, "records": records, "weights": weights}


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["result"] == other["result"]
    assert one["records"] == other["records"]
    assert one["weights"].keys() == other["weights"].keys()
    for name, tensor in one["weights"].items():
        assert torch.equal(tensor, other["weights"][name]), name


@pytest.mark.parametrize("protocol", ["holdout", "tslib"])
@pytest.mark.parametrize("batches", [1, 9, 23])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, protocol: str, batches: int) -> None:
    plan = planned(
        f"protocol={protocol}",
        "budget.max_epochs=4",
        "recipe.batch_size=4",
        "trainer.checkpoint_every_s=0",
    )
    whole, broken = start(tmp_path / "whole", plan), start(tmp_path / "broken", plan)
    go(whole, plan)
    with pytest.raises(RunEnded) as stopped:
        go(broken, plan, after(batches))
    assert stopped.value.state == "interrupted"
    go(broken, plan)
    assert_equal(outcome(whole), outcome(broken))


def test_a_run_of_several_phases_resumes_with_the_same_bits(tmp_path: Path) -> None:
    plan = planned(
        "dataset=BasicMotions",
        "dataset.folds=2",
        "recipe.batch_size=4",
        "budget.max_epochs=2",
        "trainer.checkpoint_every_s=0",
    )
    whole, broken = start(tmp_path / "whole", plan), start(tmp_path / "broken", plan)
    go(whole, plan)
    phases = json.loads((whole.path / "phases.json").read_text())["phases"]
    assert [phase["name"] for phase in phases][-1] == "final"
    with pytest.raises(RunEnded):
        go(broken, plan, after(sum(phase["steps"] for phase in phases) // 2))
    go(broken, plan)
    assert_equal(outcome(whole), outcome(broken))


def test_telemetry_changes_no_number(tmp_path: Path) -> None:
    outcomes = []
    for mode in ("off", "exact"):
        plan = planned("budget.max_epochs=2", f"telemetry={mode}", "telemetry.every=1")
        run = start(tmp_path / mode, plan)
        go(run, plan)
        found = outcome(run)
        del found["result"]["telemetry"]
        outcomes.append(found)
    assert_equal(*outcomes)


def draws(name: str) -> Callable[..., tuple[Example, ...]]:
    """`Domain.examples` that shows a weight, to tell whose weights were drawn."""

    def examples(domain: Any, cfg: Any, module: Any, data: Any) -> tuple[Example, ...]:
        assert not module.training
        assert not torch.is_grad_enabled()
        shade = int(next(module.parameters()).abs().sum() * 1e4) % 256
        picture = np.full((2, 3, 3), shade, np.uint8)
        return (Example(name, {"input": picture, "truth": picture}, picture),)

    return examples


def test_examples_are_drawn_with_the_kept_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned("budget.max_epochs=2")
    monkeypatch.setattr(Domain, "examples", draws("one"))
    run, later = start(tmp_path / "a", plan), start(tmp_path / "b", plan)
    go(run, plan)
    (record,) = json.loads((run.path / "examples.json").read_text())["examples"]
    assert record["name"] == "one"
    assert list(record["given"]) == ["input", "truth"]
    drawn = np.asarray(Image.open(run.path / record["prediction"]))
    weights = torch.load(run.path / "checkpoints" / "main.pt")
    assert (drawn == int(next(iter(weights.values())).abs().sum() * 1e4) % 256).all()
    # An attempt that died between training and result draws the same.
    go(later, plan)
    (later.path / record["prediction"]).unlink()
    go(later, plan)
    assert (np.asarray(Image.open(later.path / record["prediction"])) == drawn).all()


def test_a_picture_of_another_form_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned("budget.max_epochs=1")
    grey = np.zeros((2, 3), np.uint8)
    monkeypatch.setattr(Domain, "examples", lambda *_: (Example("one", {"input": grey}, grey),))
    with pytest.raises(ValueError, match=r"example one, input: a picture is \(H, W, 3\) uint8"):
        go(start(tmp_path, plan), plan)


def test_a_loss_that_is_not_finite_ends_the_run_as_diverged(tmp_path: Path) -> None:
    plan = planned("recipe.optimizer.lr=1e30", "recipe.gradient_clip=null", "budget.max_epochs=9")
    with pytest.raises(RunEnded) as ended:
        go(start(tmp_path, plan), plan)
    assert ended.value.state == "diverged"
    assert ended.value.details["step"] > 0
    assert "max_logit" in ended.value.details["telemetry"]


def test_weights_that_become_nan_in_the_last_step_are_no_result(tmp_path: Path) -> None:
    """Symptom: accuracy of a model full of NaN, at chance level, stood in the table."""
    plan = planned("recipe.optimizer.lr=1e38", "recipe.batch_size=64", "budget=smoke")
    with pytest.raises(RunEnded) as ended:
        go(start(tmp_path, plan), plan)
    assert ended.value.state == "diverged"


def test_damaged_leftovers_are_set_aside_and_the_run_starts_anew(tmp_path: Path) -> None:
    plan = planned("budget.max_epochs=2", "trainer.checkpoint_every_s=0")
    whole, broken = start(tmp_path / "whole", plan), start(tmp_path / "broken", plan)
    go(whole, plan)
    (broken.path / "phases.json").write_text('{"phases": [')
    (broken.path / "provenance.json").write_text("{")
    (broken.path / "checkpoints").mkdir()
    (broken.path / "checkpoints" / "main.resume.ckpt").write_bytes(b"PK torn")
    go(broken, plan)
    assert_equal(outcome(whole), outcome(broken))
    assert (broken.path / "phases.json.corrupt-1").exists()
    assert (broken.path / "checkpoints" / "main.resume.ckpt.corrupt-1").exists()


def test_a_run_continued_under_other_code_says_so(tmp_path: Path) -> None:
    plan = planned("budget.max_epochs=3", "trainer.checkpoint_every_s=0")
    run = start(tmp_path, plan)
    with pytest.raises(RunEnded):
        go(run, plan, after(5))
    found = run.provenance()
    found["source"]["commit"] = "0123456789abcdef"
    run.write_json("provenance.json", found)
    go(run, plan)
    notes = json.loads((run.path / "result.json").read_text())["notes"]
    assert any("begun under other code: 0123456789ab" in note for note in notes)


def test_the_result_tells_where_it_comes_from(tmp_path: Path) -> None:
    plan = planned("budget=smoke", "attention=qknorm_hs")
    run = start(tmp_path, plan)
    go(run, plan)
    result = outcome(run)["result"]
    assert result["schema"] == 1
    assert result["hash"] == plan.key.hash
    assert result["data"]["kind"] == "synthetic"
    assert result["data"]["fingerprint"].startswith("sha256:")
    assert result["primary_metric"]["name"] in result["metrics"]
    assert set(result["metrics"]) <= set(result["metric_info"])
    assert result["parameters"]["total"] >= result["parameters"]["attention"] > 0
    assert {"max_logit", "entropy", "key_norm_mean"} <= set(result["telemetry"])
