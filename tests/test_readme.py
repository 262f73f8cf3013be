"""The README says what is there. `python -m tests.test_readme` rewrites its table of variants."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from attention import registry
from benchmarks.plan import expand, parse
from tests.test_architecture import documented_commands

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCUMENTS = subprocess.run(
    ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()
TABLE = re.compile(r"(<!-- variants -->\n).*?(\n<!-- end of variants -->)", re.S)


def variants_table() -> str:
    """All variants as the registry knows them, in Markdown."""
    lines = ["| variant | mechanism | learned | source |", "| --- | --- | --- | --- |"]
    for name in registry.names():
        entry = registry.entry(name)
        mechanism = entry.summary.replace("|", r"\|")
        learned = ", ".join(f"`{parameter}`" for parameter in entry.learned) or "nothing"
        lines.append(f"| `{name}` | {mechanism} | {learned} | {entry.source} |")
    return "\n".join(lines)


def rewritten(text: str) -> str:
    return TABLE.sub(lambda found: found[1] + variants_table() + found[2], text)


def test_the_table_of_variants_is_the_registry() -> None:
    text = README.read_text(encoding="utf-8")
    assert TABLE.search(text)
    assert rewritten(text) == text, "run `python -m tests.test_readme`"


def test_the_example_of_use_runs(capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)
    assert found
    exec(compile(found[1], "README.md", "exec"), {})
    assert capsys.readouterr().out.count(",") == 7  # a number for each of 8 heads


USES = re.findall(
    r"^```python\n(.*?)^```",
    README.read_text(encoding="utf-8")
    .partition("## Use it in your model\n")[2]
    .partition("\n## ")[0],
    re.M | re.S,
)


@pytest.mark.parametrize("example", USES, ids=["torch", "pyg", "hf", "vit", "own"])
def test_the_examples_of_use_in_other_models_run(
    example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "transformers" in example:
        pytest.importorskip("transformers", reason="needs the extra hf")
    exec(compile(example, "README.md", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out


def test_nothing_is_left_to_fill_in() -> None:
    assert "@@" not in README.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [ROOT / name for name in DOCUMENTS])
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def engine_arguments(command: str) -> list[str]:
    """What a documented command hands to `run_all.py`."""
    if command.startswith("make"):
        shown = subprocess.run(
            ["make", "--dry-run", *shlex.split(command)[1:]],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        (command,) = [line for line in shown.splitlines() if "run_all.py" in line] or [""]
    return shlex.split(command.partition("run_all.py")[2])


@pytest.mark.parametrize(("where", "command"), documented_commands())
def test_documented_commands_ask_for_runs_that_exist(where: str, command: str) -> None:
    arguments = engine_arguments(command)
    if arguments and arguments[0] in ("run", "plan", "inspect"):
        assert expand(parse(arguments[1:])), where


if __name__ == "__main__":
    README.write_text(rewritten(README.read_text(encoding="utf-8")), encoding="utf-8")
