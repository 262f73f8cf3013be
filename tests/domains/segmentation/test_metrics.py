"""Scores from counts: by hand, against torchmetrics and mmsegmentation, over processes."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch import multiprocessing as mp

from domains.segmentation.metrics import Confusions, Scores, scores_of
from domains.segmentation.module import corrupted_scores

from .networks import masks

CLEAN = ("clean", 0)


def pictures(number: int = 6, classes: int = 5) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    found = []
    for _ in range(number):
        height, width = torch.randint(5, 30, (2,)).tolist()
        found.append((torch.randint(classes, (height, width)), masks(height, width)))
    return found


def test_scores_of_three_classes_by_hand() -> None:
    # true 0: 6 right, 2 taken for 1; true 1: 3 right, 1 taken for 0; class 2 is nowhere.
    scores = scores_of(torch.tensor([[6, 2, 0], [1, 3, 0], [0, 0, 0]]))
    assert scores.miou == pytest.approx(100 * (6 / 9 + 3 / 6) / 2)
    assert scores.macc == pytest.approx(100 * (6 / 8 + 3 / 4) / 2)
    assert scores.aacc == pytest.approx(100 * 9 / 12)
    assert scores.majority_miou == pytest.approx(100 * (8 / 12) / 2)


def test_a_class_that_is_only_predicted_counts_in_the_union_alone() -> None:
    scores = scores_of(torch.tensor([[4, 1], [0, 0]]))
    assert scores.miou == pytest.approx(100 * (4 / 5 + 0) / 2)
    assert scores.macc == pytest.approx(100 * 4 / 5)


def test_counts_of_pictures_are_added_not_their_scores() -> None:
    whole, parts = Confusions([CLEAN], 5), []
    for predicted, mask in pictures():
        whole.update(predicted, mask, CLEAN)
        single = Confusions([CLEAN], 5)
        single.update(predicted, mask, CLEAN)
        parts.append(single.scores()[CLEAN].miou)
    assert whole.scores()[CLEAN].miou != pytest.approx(sum(parts) / len(parts), abs=0.05)


def test_ignored_pixels_do_not_count() -> None:
    counts = Confusions([CLEAN], 2)
    counts.update(torch.tensor([[0, 1, 1]]), torch.tensor([[0, 1, 255]]), CLEAN)
    assert counts.scores()[CLEAN] == Scores(100.0, 100.0, 100.0, 25.0)


def test_the_majority_predictor_is_that_of_the_pixels() -> None:
    torch.manual_seed(0)
    mask = torch.randint(3, (40, 40)).clamp(max=1)
    counts = Confusions([CLEAN], 3)
    counts.update(torch.full_like(mask, int(mask.float().mean() > 0.5)), mask, CLEAN)
    found = counts.scores()[CLEAN]
    assert found.majority_miou == pytest.approx(found.miou)


def test_torchmetrics_agrees() -> None:
    from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

    ours = Confusions([CLEAN], 5)
    iou = MulticlassJaccardIndex(5, average="macro", ignore_index=255)
    macro = MulticlassAccuracy(5, average="macro", ignore_index=255)
    micro = MulticlassAccuracy(5, average="micro", ignore_index=255)
    for predicted, mask in pictures():
        ours.update(predicted, mask, CLEAN)
        for metric in (iou, macro, micro):
            metric.update(predicted.flatten(), mask.flatten())
    found = ours.scores()[CLEAN]
    assert found.miou == pytest.approx(100 * float(iou.compute()), abs=1e-4)
    assert found.macc == pytest.approx(100 * float(macro.compute()), abs=1e-4)
    assert found.aacc == pytest.approx(100 * float(micro.compute()), abs=1e-4)


def test_corrupted_scores_are_means_of_types_of_means_of_severities() -> None:
    def of(miou: float) -> Scores:
        return Scores(miou, 0.0, 0.0, 0.0)

    found = corrupted_scores(
        "fan19", {("fog", 1): of(10.0), ("fog", 2): of(20.0), ("snow", 1): of(40.0)}
    )
    assert found == {
        "test/miou_fan19": 27.5,
        "test/miou_fan19_fog": 15.0,
        "test/miou_fan19_snow": 40.0,
    }
    assert corrupted_scores("none", {}) == {}


def test_two_processes_count_every_picture_once(tmp_path: Path) -> None:
    """Five pictures on two processes: no repeats to make the shares equal."""
    whole = Confusions([CLEAN], 5)
    for predicted, mask in pictures(5):
        whole.update(predicted, mask, CLEAN)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Forked: a new interpreter would import everything first.
    mp.start_processes(_share, args=(port, tmp_path), nprocs=2, start_method="fork")  # type: ignore[attr-defined]
    expected = whole.scores()[CLEAN].miou
    assert [float((tmp_path / str(rank)).read_text()) for rank in (0, 1)] == [expected] * 2


def _share(rank: int, port: int, folder: Path) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    counts = Confusions([CLEAN], 5)
    for predicted, mask in pictures(5)[rank::2]:
        counts.update(predicted, mask, CLEAN)
    (folder / str(rank)).write_text(str(counts.scores()[CLEAN].miou))
    torch.distributed.destroy_process_group()
