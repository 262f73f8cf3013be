"""Use from mmsegmentation, and agreement with its metric. Needs the extra `mmseg`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from domains.segmentation.metrics import Confusions

from .networks import config, network
from .test_metrics import CLEAN, pictures

pytest.importorskip("mmseg", reason="the extra 'mmseg' is not installed")

CONFIG = """
custom_imports = dict(imports=['domains.segmentation.mmseg_backbone'])
model = dict(
    type='EncoderDecoder',
    backbone=dict(
        type='AttentionViT', attention='{attention}', img_size=32, patch_size=8, embed_dims=24,
        num_layers=2, num_heads=3, drop_path_rate=0.0),
    decode_head=dict(
        type='SegmenterMaskTransformerHead', in_channels=24, channels=24, num_classes=5,
        num_layers=1, num_heads=3, embed_dims=24, dropout_ratio=0.0,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)),
    test_cfg=dict(mode='whole'))
"""


def built(folder: Path, attention: str) -> Any:
    """A model from a configuration file."""
    from mmengine.config import Config
    from mmseg.registry import MODELS
    from mmseg.utils import register_all_modules

    register_all_modules()
    path = folder / f"{attention}.py"
    path.write_text(CONFIG.format(attention=attention), encoding="utf-8")
    return MODELS.build(Config.fromfile(path).model)


@pytest.mark.parametrize("attention", ["standard", "quest"])
def test_a_model_from_a_file_trains_and_sees_what_ours_sees(tmp_path: Path, attention: str) -> None:
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    model = built(tmp_path, attention)
    cores = [m.name for name, m in model.named_modules() if name.endswith("attn.core")]
    assert cores == [attention] * 2
    images, labels = torch.randn(2, 3, 32, 32), torch.randint(5, (2, 1, 32, 32))
    samples = []
    for label in labels:
        sample = SegDataSample(metainfo={"img_shape": (32, 32)})
        sample.gt_sem_seg = PixelData(data=label)
        samples.append(sample)
    loss = model.loss(images, samples)["decode.loss_ce"]
    loss.backward()
    assert all(p.grad is not None for p in model.backbone.parameters())
    ours = network(config(), attention)
    ours.encoder.load_state_dict(model.backbone.state_dict())
    model.eval()
    with torch.no_grad():
        (features,) = model.backbone(images)
        expected = ours.encoder(images)[:, 1:].transpose(1, 2).reshape(2, 24, 4, 4)
    torch.testing.assert_close(features, expected, atol=0.0, rtol=0.0)


def test_its_metric_agrees() -> None:
    from mmseg.evaluation.metrics import IoUMetric

    theirs = IoUMetric(iou_metrics=["mIoU"], ignore_index=255)
    theirs.dataset_meta = {"classes": list("abcde")}
    ours, results = Confusions([CLEAN], 5), []
    for predicted, mask in pictures():
        ours.update(predicted, mask, CLEAN)
        results.append(theirs.intersect_and_union(predicted, mask, 5, 255))
    found, expected = ours.scores()[CLEAN], theirs.compute_metrics(results)
    # Theirs are rounded to two digits.
    assert found.miou == pytest.approx(float(expected["mIoU"]), abs=0.0051)
    assert found.macc == pytest.approx(float(expected["mAcc"]), abs=0.0051)
    assert found.aacc == pytest.approx(float(expected["aAcc"]), abs=0.0051)
