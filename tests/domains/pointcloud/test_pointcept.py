"""Attention variants by the path of a checkout; what a swap does: tests/attention/swapping."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from attention import AttentionFactory, UnsupportedError
from domains.pointcloud import pointcept
from tests.attention.swapping.points import points

CHECKOUT = '''"""In the place of the published file."""

from tests.attention.swapping import points


class SerializedAttention(points.SerializedAttention):
    """As published."""
'''


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that passes for a known one."""
    path = tmp_path / pointcept.FILE
    path.parent.mkdir(parents=True)
    path.write_text(CHECKOUT)
    source = " ".join(CHECKOUT.partition("class")[2].split())
    digest = hashlib.sha256(f"class {source}".encode()).hexdigest()
    monkeypatch.setattr(pointcept, "KNOWN", (digest,))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "pointcept"]:
        del sys.modules[name]


def test_what_is_built_afterwards_has_the_variant(checkout: Path) -> None:
    factory = AttentionFactory("qknorm_hs", {"max_scale": 50.0})
    module = pointcept.install(checkout, factory)
    layer = module.SerializedAttention(16, 2)
    assert layer.core.name == "qknorm_hs"
    assert layer.core.variant.config.max_scale == 50.0
    assert [name for name, _ in layer.named_parameters() if "core" in name] == [
        "core.variant.log_scale"
    ]
    assert layer(points()).feat.isfinite().all()


def test_it_computes_what_a_swap_does(checkout: Path) -> None:
    module = pointcept.install(checkout, AttentionFactory("standard"))
    published = module.SerializedAttention.original
    layer, original = module.SerializedAttention(enable_flash=True), published(enable_flash=True)
    original.load_state_dict(layer.state_dict())
    assert torch.equal(layer(points()).feat, original(points()).feat)


def test_the_last_variant_counts(checkout: Path) -> None:
    for name in ("quest", "qnorm"):
        module = pointcept.install(checkout, AttentionFactory(name))
        assert module.SerializedAttention().core.name == name


def test_what_cannot_be_is_refused_where_the_model_is_built(checkout: Path) -> None:
    module = pointcept.install(checkout, AttentionFactory("softmax1"))
    module.SerializedAttention()
    with pytest.raises(UnsupportedError, match="enable_flash=False"):
        module.SerializedAttention(enable_flash=True)


def test_another_checkout_is_refused_once_one_is_imported(checkout: Path, tmp_path: Path) -> None:
    pointcept.install(checkout, AttentionFactory("quest"))
    other = tmp_path / "other" / pointcept.FILE
    other.parent.mkdir(parents=True)
    other.write_text(CHECKOUT)
    with pytest.raises(ValueError, match="another Pointcept is imported already"):
        pointcept.install(tmp_path / "other", AttentionFactory("quest"))


def test_a_folder_without_ptv3_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no checkout of Pointcept"):
        pointcept.install(tmp_path, AttentionFactory("quest"))


def test_a_checkout_that_is_not_known_is_refused(tmp_path: Path) -> None:
    path = tmp_path / pointcept.FILE
    path.parent.mkdir(parents=True)
    path.write_text("class SerializedAttention:\n    pass\n")
    with pytest.raises(ValueError, match="none that is known here"):
        pointcept.install(tmp_path, AttentionFactory("quest"))
