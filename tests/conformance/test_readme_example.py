"""The variant that the README shows as an example passes every conformance check."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attention import registry
from tests.conformance.checks import CHECKS, Check

README = Path(__file__).parents[2] / "README.md"
HEADING = "## Add a variant"


def example() -> str:
    """The first Python block under the heading."""
    text = README.read_text(encoding="utf-8")
    assert HEADING in text, f"README.md has no section {HEADING!r}"
    found = re.search(r"^```python\n(.*?)^```", text.split(HEADING, 1)[1], re.MULTILINE | re.DOTALL)
    assert found, f"no ```python block under {HEADING!r} in README.md"
    return found[1]


@pytest.fixture(scope="module")
def name(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name under which the example registered itself."""
    before = set(registry.names())
    path = tmp_path_factory.mktemp("example") / "readme_example.py"
    path.write_text(example(), encoding="utf-8")
    module_name = "attention.variants.readme_example"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
        (new,) = set(registry.names()) - before
        yield new
    finally:
        del sys.modules[module_name]
        for new in set(registry.names()) - before:
            registry.unregister(new)


def test_the_example_is_short() -> None:
    assert len(example().splitlines()) < 30


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_the_example_passes(name: str, check: Check) -> None:
    check(name, None)
