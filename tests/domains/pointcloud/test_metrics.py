"""IoU against counting by hand and against torchmetrics' own index."""

from __future__ import annotations

import pytest
import torch
from torchmetrics.classification import MulticlassJaccardIndex

from domains.pointcloud.batch import IGNORED
from domains.pointcloud.metrics import SplitScore


def score_of(*parts: tuple[list[int], list[int]]) -> dict[str, float]:
    score = SplitScore()
    for prediction, label in parts:
        score.update(torch.tensor(prediction), torch.tensor(label))
    return {name: value.item() for name, value in score.compute().items()}


def test_scores_by_hand():
    """Class 3: two of three points hit, one false alarm; class 10: one of two hit."""
    found = score_of(([3, 3, 10, 3, 10, 0], [3, 3, 3, 10, 10, IGNORED]))
    assert found == {
        "miou": pytest.approx(100 * (2 / 4 + 1 / 3) / 2),
        "accuracy": pytest.approx(60.0),
        "miou_majority": pytest.approx(100 * (3 / 5) / 2),
        "iou_car": pytest.approx(50.0),
        "iou_driveable_surface": pytest.approx(100 / 3),
    }


def test_a_predicted_class_that_does_not_occur_is_no_class_of_the_mean():
    found = score_of(([3, 0], [3, 3]))
    assert found["miou"] == pytest.approx(50.0)
    assert "iou_barrier" not in found


def test_the_constant_predictor_is_the_best_of_its_kind():
    label = [3] * 5 + [10] * 3 + [15] * 2
    best = max(score_of(([number] * 10, label))["miou"] for number in range(16))
    assert score_of(([0] * 10, label))["miou_majority"] == pytest.approx(best)


def test_scores_equal_torchmetrics_where_all_classes_occur():
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(-1, 16, (3000,), generator=generator)
    noise = torch.randint(0, 16, (3000,), generator=generator)
    prediction = torch.where(torch.rand(3000, generator=generator) < 0.5, label.clamp_min(0), noise)
    index = MulticlassJaccardIndex(16, ignore_index=IGNORED)
    score = SplitScore()
    score.update(prediction, label)
    assert score.compute()["miou"].item() == pytest.approx(100 * index(prediction, label).item())


def test_how_points_are_batched_does_not_matter():
    prediction, label = [3, 3, 10, 3, 10, 0], [3, 3, 3, 10, 10, IGNORED]
    parts = [(prediction[a:b], label[a:b]) for a, b in ((0, 1), (1, 5), (5, 6))]
    assert score_of((prediction, label)) == score_of(*parts)
