"""Unexpected skips fail, expected ones do not, and a test skipped everywhere is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import strict_skips


def run_pytest(folder: Path, body: str, *options: str, **environment: str) -> tuple[int, str]:
    (folder / "test_sample.py").write_text("import pytest\n" + body)
    env = {name: value for name, value in os.environ.items() if name not in ("CI", "DATA_DIR")}
    root = Path(strict_skips.__file__).resolve().parent.parent
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.strict_skips", "-c", os.devnull,
         "--rootdir", folder, "-p", "no:cacheprovider", "test_sample.py", *options],
        cwd=folder, env=env | {"PYTHONPATH": str(root)} | environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return finished.returncode, finished.stdout


SKIPS = """
@pytest.mark.skip(reason="{reason}")
def test_one(): pass
def test_two(): pass
"""


def test_a_skip_passes_without_strictness(tmp_path: Path) -> None:
    assert run_pytest(tmp_path, SKIPS.format(reason="no time"))[0] == 0


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "distributed"])
def test_an_unexpected_skip_fails(tmp_path: Path, options: tuple[str, ...]) -> None:
    code, output = run_pytest(tmp_path, SKIPS.format(reason="no time"), *options, CI="true")
    assert code == 1
    assert "unexpected skip: no time" in output
    assert "1 passed, 1 error" in output.splitlines()[-1]


def test_an_expected_skip_passes(tmp_path: Path) -> None:
    reason = SKIPS.format(reason="needs a GPU for this")
    assert run_pytest(tmp_path, reason, "--strict-skips")[0] == 0


def test_a_module_skipped_on_import_fails(tmp_path: Path) -> None:
    body = 'pytest.importorskip("no_such_module")\ndef test_one(): pass\n'
    code, output = run_pytest(tmp_path, body, "--strict-skips")
    assert code != 0
    assert "unexpected skip: could not import" in output


def test_missing_data_is_expected_only_where_no_folder_is_named(tmp_path: Path) -> None:
    body = SKIPS.format(reason="DATA_DIR has no such file")
    assert run_pytest(tmp_path, body, "--strict-skips")[0] == 0
    assert run_pytest(tmp_path, body, "--strict-skips", DATA_DIR="/data")[0] == 1


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "distributed"])
@pytest.mark.parametrize(("skipped", "expected"), [("x > 0", 0), ("x >= 0", 1)])
def test_a_test_skipped_everywhere_fails(
    tmp_path: Path, skipped: str, expected: int, options: tuple[str, ...]
) -> None:
    body = f"""
@pytest.mark.parametrize("x", [0, 1])
def test_one(x):
    if {skipped}: pytest.skip("cannot do this")
"""
    (tmp_path / "allowed.txt").write_text("somewhere cannot do\n")
    code, output = run_pytest(
        tmp_path, body, "--strict-skips", "--allowed-skips", "allowed.txt", *options
    )
    assert code == expected
    assert ("SKIPPED EVERYWHERE test_sample.py::test_one: cannot do this" in output) == bool(code)


def test_the_list_refuses_what_it_does_not_understand(tmp_path: Path) -> None:
    listing = tmp_path / "list.txt"
    listing.write_text("# comment\n\nsometimes it rains\n")
    with pytest.raises(ValueError, match=r"list\.txt:3: `sometimes it rains`"):
        strict_skips.read_allowances(listing)
