"""Provenance: complete, plain, cheap, and right about the state of the source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks import provenance


@pytest.fixture
def repository(tmp_path: Path) -> Callable[..., str]:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "--quiet")
    (tmp_path / "model.py").write_text("width = 1\n")
    (tmp_path / ".gitignore").write_text("results/\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    return git


def source(folder: Path) -> dict[str, str | None]:
    return provenance.source.__wrapped__(folder / "model.py")


def test_clean_checkout(tmp_path: Path, repository: Callable[..., str]) -> None:
    assert source(tmp_path) == {"commit": repository("rev-parse", "HEAD"), "dirty": None}
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "run.yaml").write_text("ignored by git")
    (tmp_path / "picture.png").write_bytes(b"no source file")
    assert source(tmp_path)["dirty"] is None


def test_every_difference_has_its_own_hash(tmp_path: Path, repository: Callable[..., str]) -> None:
    hashes = []
    (tmp_path / "model.py").write_text("width = 2\n")
    hashes.append(source(tmp_path)["dirty"])
    repository("add", ".")  # staged or not is the same
    assert source(tmp_path)["dirty"] == hashes[0]
    (tmp_path / "new.py").write_text("depth = 1\n")
    hashes.append(source(tmp_path)["dirty"])
    (tmp_path / "new.py").write_text("depth = 2\n")
    hashes.append(source(tmp_path)["dirty"])
    assert None not in hashes
    assert len(set(hashes)) == 3


def test_outside_a_checkout(
    tmp_path: Path, repository: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = {"commit": None, "dirty": None}
    installed = tmp_path / "results" / "site-packages"  # below a repository, but not of it
    installed.mkdir(parents=True)
    (installed / "model.py").write_text("")
    assert source(installed) == nothing
    monkeypatch.setenv("PATH", str(tmp_path))  # no git at all
    assert source(tmp_path) == nothing
    monkeypatch.undo()
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert source(tmp_path) == nothing


def test_everything_is_said() -> None:
    told = provenance.collect(device="cpu", threads=2)
    assert json.loads(json.dumps(told)) == told
    assert told["packages"]["pytest"] == version("pytest")
    assert told["device"] == "cpu"
    assert told["threads"] == 2
    assert told["python"].count(".") == 2
    for name in ("host", "system", "cpu", "cores", "memory_bytes"):
        assert told["machine"][name], name


def test_it_imports_nothing_heavy_and_tells_torch_flags_if_there() -> None:
    code = (
        "import json, sys\n"
        "sys.argv = ['run_all.py', 'run', 'seeds=[0, 1]']\n"
        "from benchmarks import provenance\n"
        "first = provenance.collect(device='cpu', threads=1)\n"
        "light = 'torch' not in sys.modules\n"
        "import torch\n"
        "torch.use_deterministic_algorithms(True)\n"
        "second = provenance.collect(device='cpu', threads=1)\n"
        "print(json.dumps([light, first['command'], first['numerics'], second['numerics']]))\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    light, asked, none, flags = json.loads(done.stdout)
    assert light
    assert asked == "python run_all.py run 'seeds=[0, 1]'"
    assert none == {}
    assert flags["deterministic_algorithms"] is True
    assert flags["threads"] == 1
