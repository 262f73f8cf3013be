"""Attaching, sampling and collecting; the numbers are checked in the conformance checks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from attention import AttentionCore, MultiHeadAttention, recompute, recorder, telemetry


@pytest.fixture
def model() -> nn.Sequential:
    return nn.Sequential(MultiHeadAttention(8, 2), MultiHeadAttention(8, 2, variant="quest"))


def test_it_looks_at_every_kth_step(model: nn.Sequential) -> None:
    x = torch.randn(2, 5, 8)
    with telemetry.attach(model, every=3) as watch:
        seen = []
        for _ in range(7):
            model(x)
            seen.append(bool(watch.collect()))
            watch.step()
        assert seen == [True, False, False, True, False, False, True]
        model(x)
    assert model[0].core.telemetry is None
    assert not watch.collect()


def test_readings_of_several_passes_are_merged(model: nn.Sequential) -> None:
    parts = torch.randn(2, 3, 5, 8).unbind()
    readings = []
    for batches in ([torch.cat(parts)], list(parts)):
        with telemetry.attach(model, mode="exact") as watch:
            for batch in batches:
                model(batch)
                watch.step()
            readings.append(watch.collect())
    for name, reading in readings[0].items():
        for key, values in reading.items():
            assert values == pytest.approx(readings[1][name][key], rel=1e-5), (name, key)
            assert all(isinstance(value, float) for value in values)


def test_blocks_do_not_show(model: nn.Sequential, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 7, 8)
    readings = []
    for size in (2**20, 1):
        monkeypatch.setattr(recompute, "BLOCK_SCORES", size)
        monkeypatch.setattr(recorder, "BLOCK_SCORES", size)
        with telemetry.attach(model, mode="exact") as watch:
            model(x)
            readings.append(watch.collect())
    for name, reading in readings[0].items():
        for key, values in reading.items():
            assert values == pytest.approx(readings[1][name][key], rel=1e-5)


def test_padded_and_packed_tokens_read_the_same() -> None:
    layer = MultiHeadAttention(8, 2, variant="quest")
    cross = MultiHeadAttention(8, 2, key_dim=8)
    mask = torch.arange(6) < torch.tensor([6, 2, 4])[:, None]
    x = torch.randn(3, 6, 8)
    bounds = torch.tensor([0, 6, 8, 12])
    readings = []
    with telemetry.attach(layer, mode="exact") as watch:
        layer(x, key_padding_mask=mask)
        readings.append(watch.collect()["core"])
        layer(x[mask], cu_seqlens=bounds)
        readings.append(watch.collect()["core"])
        for length, row in ((6, 0), (2, 1), (4, 2)):
            layer(x[row : row + 1, :length])
        readings.append(watch.collect()["core"])
    for key, values in readings[0].items():
        for other in readings[1:]:
            assert values == pytest.approx(other[key], rel=1e-5), key
    # Packed queries are padded inside, which nothing but the layer itself knows.
    readings = []
    with telemetry.attach(cross, mode="exact") as watch:
        cross(x[mask], x[mask], cu_seqlens=bounds, context_cu_seqlens=bounds)
        readings.append(watch.collect()["core"])
        for length, row in ((6, 0), (2, 1), (4, 2)):
            cross(x[row : row + 1, :length], x[row : row + 1, :length])
        readings.append(watch.collect()["core"])
    for key, values in readings[0].items():
        assert values == pytest.approx(readings[1][key], rel=1e-5), key


def test_nothing_but_padding_gives_no_reading() -> None:
    core = AttentionCore(2, 4)
    q = torch.randn(1, 2, 3, 4)
    with telemetry.attach(core) as watch:
        core(q, q, q, key_padding_mask=torch.zeros(1, 3, dtype=torch.bool))
        assert watch.collect() == {}


def test_it_can_be_attached_once_at_a_time(model: nn.Sequential) -> None:
    first = telemetry.attach(model)
    with pytest.raises(ValueError, match=r"0\.core.*detach"):
        telemetry.attach(model)
    first.detach()
    second = telemetry.attach(model)
    first.detach()
    assert model[0].core.telemetry is not None, "an old one does not switch a new one off"
    second.detach()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"mode": "full"}, "sampled, exact"), ({"every": 0}, "every=0"), ({"rows": 0}, "rows=0")],
)
def test_bad_arguments_are_refused(
    model: nn.Sequential, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        telemetry.attach(model, **arguments)


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear"):
        telemetry.attach(nn.Linear(2, 2))


def test_a_watched_model_can_be_copied_compiled_and_cast(model: nn.Sequential) -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 5, 8)
    expected = model(x)
    compiled = torch.compile(model, backend="aot_eager")
    with telemetry.attach(model) as watch:
        torch.testing.assert_close(copy.deepcopy(model)(x), expected)
        watch.collect()
        torch.testing.assert_close(compiled(x), expected)
        assert set(watch.collect()) == {"0.core", "1.core"}
        with torch.autocast("cpu", torch.bfloat16):
            model(x)
        exact = watch.collect()["1.core"]["max_logit"]
    with telemetry.attach(model) as watch:
        model(x)
        assert exact == pytest.approx(watch.collect()["1.core"]["max_logit"], rel=0.05)


@pytest.mark.parametrize("shape", [(0, 5, 8), (2, 0, 8)])
def test_an_empty_batch_is_not_recorded(model: nn.Sequential, shape: tuple[int, ...]) -> None:
    with telemetry.attach(model) as watch:
        model(torch.randn(shape))
        assert not watch.collect()
