"""Rules about the source itself: who may import whom, what stays out, how long a file may be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
TOWER = ("attention", "domains", "benchmarks", "reports")

# Modules that commands and reports start with: they must not pay for importing torch.
LIGHT_MODULES = (
    "benchmarks",
    "benchmarks.cli",
    "benchmarks.launch",
    "benchmarks.launch.display",
    "benchmarks.launch.local",
    "benchmarks.provenance",
    "benchmarks.store",
    "domains",
    "domains.contract",
    "reports",
    "reports.cli",
)
HEAVY_MODULES = ("torch", "lightning", "torchmetrics", "torch_geometric", "sktime", "sklearn")

# Adapters to libraries that `attention` does not need.
ADAPTERS = ("attention/swapping/huggingface",)

# Files that may be longer than MAX_LINES, each with its reason.
MAX_LINES = 400
LONG_FILES: dict[str, str] = {}

MARKDOWN = sorted(ROOT.glob("*.md"))
COMMAND = re.compile(r"^(?:\$ )?(?:make|(?:\S*/)?python3? run_all\.py)\b.*")


def sources(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def tracked(*suffixes: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    paths = (ROOT / name for name in listing.splitlines())
    return [path for path in paths if path.suffix in suffixes and path.is_file()]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Absolute names of everything a file imports, with the line; `from a import b` gives `a.b`."""
    package = module_of(path) if path.name == "__init__.py" else module_of(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base]).rstrip(".")
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def breaches(allowed: dict[str, tuple[str, ...]], paths: list[Path]) -> list[str]:
    """Imports of project packages that `allowed` (prefixes for each package) does not list."""
    found = []
    for path in paths:
        prefixes = allowed[path.relative_to(ROOT).parts[0]]
        for target, line in imports(path):
            if target.partition(".")[0] not in (*TOWER, "tests", "run_all"):
                continue
            if not any(f"{target}.".startswith(f"{prefix}.") for prefix in prefixes):
                found.append(f"{name(path)}:{line} imports {target}")
    return found


def test_imports_go_one_way() -> None:
    allowed = {
        "attention": ("attention",),
        "domains": ("domains", "attention"),
        "benchmarks": ("benchmarks", "domains", "attention"),
        "reports": ("reports", "benchmarks.store"),
    }
    assert not breaches(allowed, sources(*TOWER))


def test_attention_imports_torch_and_the_standard_library_alone() -> None:
    known = {*sys.stdlib_module_names, "torch", "attention"}
    # An adapter is imported only when somebody swaps a model of its library.
    files = [path for path in sources("attention") if not name(path).startswith(ADAPTERS)]
    found = [
        f"{name(path)}:{line} imports {target}"
        for path in files
        for target, line in imports(path)
        if target.partition(".")[0] not in known
    ]
    assert not found


def test_domains_never_import_one_another() -> None:
    folders = {path.name for path in (ROOT / "domains").iterdir() if path.is_dir()}
    found = []
    for path in sources("domains"):
        shared = {"common", path.relative_to(ROOT / "domains").parts[0]}
        for target, line in imports(path):
            parts = target.split(".")
            if parts[0] == "domains" and len(parts) > 1 and parts[1] in folders - shared:
                found.append(f"{name(path)}:{line} imports {target}")
    assert not found


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_light_modules_import_no_torch(module: str) -> None:
    code = (
        f"import sys, {module}; "
        f"heavy = [m for m in {HEAVY_MODULES!r} if m in sys.modules]; "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr


NOT_INSTALLED = {"mmseg": "onedl-mmsegmentation"}
"""Distributions of optional packages whose import name is another, where they are not installed."""


def test_third_party_imports_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    declared = {
        re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower().replace("_", "-")
        for line in [*project["dependencies"], *extras]
    }
    distributions = packages_distributions()
    undeclared = set()
    for path in [*sources(*TOWER), ROOT / "run_all.py"]:
        for target, _ in imports(path):
            top = target.partition(".")[0]
            if top in sys.stdlib_module_names or top in TOWER:
                continue
            known = distributions.get(top, [NOT_INSTALLED.get(top, top)])
            owners = {owner.lower().replace("_", "-") for owner in known}
            if not owners & declared:
                undeclared.add(f"{top} ({name(path)})")
    assert not undeclared


def test_no_file_is_too_long() -> None:
    lengths = {name(path): len(path.read_text().splitlines()) for path in tracked(".py")}
    too_long = {
        path: length
        for path, length in lengths.items()
        if length > MAX_LINES and path not in LONG_FILES
    }
    assert not too_long
    assert all(lengths.get(path, 0) > MAX_LINES for path in LONG_FILES), "no longer needed"


def test_no_path_of_a_machine() -> None:
    pattern = re.compile(r"(?<![\w.~}$)-])/(?:work|home|root|tmp|Users|mnt|scratch)/")
    suffixes = (".py", ".yaml", ".toml", ".md", ".txt", ".sh", ".html", ".json", ".csv", "")
    found = [
        f"{name(path)}:{number}: {line.strip()[:80]}"
        for path in tracked(*suffixes)
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not found


def test_nothing_unpickles_or_evaluates() -> None:
    found = []
    for path in sources(*TOWER):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                found.append(f"{name(path)}:{node.lineno} bare except")
            if not isinstance(node, ast.Call):
                continue
            call = ast.unparse(node.func)
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if call in ("eval", "exec", "pickle.load", "pickle.loads", "pd.read_pickle"):
                found.append(f"{name(path)}:{node.lineno} {call}")
            if keywords.get("weights_only") == "False" or keywords.get("allow_pickle") == "True":
                found.append(f"{name(path)}:{node.lineno} {call} would unpickle")
    assert not found


def test_every_variant_file_is_registered() -> None:
    from attention import registry

    files = sorted((ROOT / "attention" / "variants").glob("[!_]*.py"))
    assert files
    registered = {sys.modules[registry.entry(key).variant.__module__] for key in registry.names()}
    assert {f"attention.variants.{path.stem}" for path in files} == {
        module.__name__ for module in registered
    }


def test_every_configuration_file_parses() -> None:
    files = tracked(".yaml", ".yml")
    assert files
    for path in files:
        assert isinstance(yaml.safe_load(path.read_text()), dict | None), name(path)


def documented_commands() -> list[tuple[str, str]]:
    """Commands in the `bash` blocks of the documentation, with where they stand."""
    found = []
    for path in MARKDOWN:
        for block in re.findall(r"^```bash\n(.*?)^```", path.read_text(), re.M | re.S):
            for line in block.replace("\\\n", " ").splitlines():
                command = line.partition(" #")[0].strip()
                if COMMAND.match(command):
                    found.append((path.name, command.removeprefix("$ ")))
    return found


def test_documented_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    commands = [entry for entry in documented_commands() if entry[1].startswith("make")]
    assert commands
    for where, command in commands:
        named = [word for word in command.split()[1:] if re.fullmatch(r"[a-z-]+", word)]
        assert set(named) <= targets, f"{where}: {command}"
