"""Commands and exit codes, as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import cli
from benchmarks.paths import results_dir

SMOKE = ("dataset=JapaneseVowels", "synthetic=true", "budget=smoke", "launcher.workers=1")


def test_without_arguments_it_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    assert "run suite=quick" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["rnu"], "Did you mean 'run'"),
        (["run", "attention=quset"], "did you mean 'quest'"),
        (["plan", "recipe.optimiser.lr=1"], "Did you mean 'recipe.optimizer.lr'"),
        (["inspect", "attention=quest,standard"], "asks for 2"),
    ],
)
def test_usage_errors_are_code_2(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert hint in capsys.readouterr().err


def test_missing_data_are_code_3_and_the_rest_is_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATA_DIR", raising=False)
    code = cli.main(["plan", "dataset=Heartbeat", "attention=standard", "seed=0"])
    assert code == 0, "planning needs no data"
    monkeypatch.setattr("domains.timeseries.sources.reachable", lambda url: False)
    assert cli.main(["run", "dataset=Heartbeat", "attention=standard", "seed=0"]) == 3
    assert "Heartbeat_TRAIN.ts" in capsys.readouterr().out


def test_an_unwritable_store_is_code_3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # permissions would not stop root
    monkeypatch.setenv("RESULTS_DIR", str(tmp_path / "file" / "results"))
    assert cli.main(["run", *SMOKE, "attention=standard", "seed=0"]) == 3


def test_run_plan_status_and_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*SMOKE, "attention=standard,quest", "seeds=1"]
    assert cli.main(["run", *asked]) == 0
    capsys.readouterr()
    assert cli.main(["run", *asked]) == 0
    assert "2 settled, 0 to do" in capsys.readouterr().out
    assert cli.main(["plan", *asked]) == 0
    assert "0 to do" in capsys.readouterr().out
    assert cli.main(["status"]) == 0
    assert "2 done" in capsys.readouterr().out


def test_a_lost_result_is_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    """Symptom: a damaged result.json of a finished run was never repaired."""
    asked = [*SMOKE, "attention=standard", "seed=0"]
    assert cli.main(["run", *asked]) == 0
    (result,) = results_dir().glob("**/result.json")
    before = result.read_text()
    result.write_text('{"schema": 1, "met')
    cli.main(["status"])
    assert "1 unreadable" in capsys.readouterr().out
    assert cli.main(["run", *asked]) == 0
    assert json.loads(result.read_text())["metrics"] == json.loads(before)["metrics"]
    assert result.with_name("result.json.corrupt-1").exists()


def test_retry_trains_again() -> None:
    """Symptom: the phases of the first attempt were taken for those of the second."""
    asked = [*SMOKE, "attention=standard", "seed=0"]
    assert cli.main(["run", *asked]) == 0
    assert cli.main(["run", *asked, "retry=done"]) == 0
    (run,) = (path.parent for path in results_dir().glob("**/result.json"))
    assert {path.name for path in run.iterdir()} >= {"phases.json.replaced-1", "metrics.jsonl"}


def test_a_diverged_run_is_code_1_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*SMOKE, "attention=standard", "seed=0", "recipe.gradient_clip=null"]
    assert cli.main(["run", *asked, "recipe.optimizer.lr=1e30,0.001"]) == 1
    capsys.readouterr()
    cli.main(["status"])
    printed = capsys.readouterr().out
    assert "1 done" in printed
    assert "1 diverged" in printed


def test_inspect_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("domains.timeseries.sources.reachable", lambda url: False)
    arguments = ["inspect", "dataset=Heartbeat", "attention=quest", "protocol=tslib", "--json"]
    assert cli.main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"]["total"] == 422_018
    assert found["steps"] == {"per_epoch": 13, "epochs": 100, "total": 1300}
    assert found["learning_rate"][0] == {"epoch": 0, "value": 0.001}
    assert found["memory"]["optimizer_bytes"] >= 2 * 4 * found["parameters"]["trainable"]


def test_doctor_finds_this_machine_ready(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    assert "torch" in capsys.readouterr().out
