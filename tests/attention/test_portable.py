"""The folder works in another project, under another name."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import attention

PROGRAM = """
import sys, torch
from borrowed import MultiHeadAttention, registry, tags, telemetry
assert len(registry.names()) >= 9
for name in registry.names():
    layer = MultiHeadAttention(8, 2, variant=name)
    with telemetry.attach(layer) as watch:
        layer(torch.randn(1, 3, 8)).sum().backward()
        assert watch.collect()
    assert tags.tag_of(layer)
assert not any(module.split(".")[0] == "attention" for module in sys.modules)
"""


def test_a_copy_of_the_folder_works(tmp_path: Path) -> None:
    source = Path(attention.__file__).parent
    shutil.copytree(source, tmp_path / "borrowed", ignore=shutil.ignore_patterns("__pycache__"))
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
