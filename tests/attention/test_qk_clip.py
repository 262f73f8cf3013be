"""What only QK-Clip does: what it sees in training, and what it does after a step."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from attention import MultiHeadAttention, after_step, recompute

HEADS, WIDTH = 3, 12


def layer(variant: str = "qk_clip", *, seed: int = 0, scale: float = 4.0, **options: object):  # type: ignore[no-untyped-def]
    """With long queries and keys, those of the first head longer."""
    torch.manual_seed(seed)
    model = MultiHeadAttention(WIDTH, HEADS, variant=variant, **options).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for name in ("q", "k"):
            weight, bias = model.projections()[name]
            nn.init.normal_(weight)
            weight[: WIDTH // HEADS] *= scale
            if bias is not None:
                nn.init.normal_(bias)
    return model


def tokens(seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 7, WIDTH, generator=generator, dtype=torch.float64)


def peaks(model: MultiHeadAttention, x: Tensor, **masks: Tensor) -> Tensor:
    """(H,) largest visible logit, from the explicit ones."""
    return model.logits(x, **masks).amax((0, 2, 3)).detach()


@pytest.mark.parametrize("projection", ["separate", "fused"])
@pytest.mark.parametrize("bias", [False, True])
def test_heads_above_the_threshold_come_down_to_it(projection: str, bias: bool) -> None:
    given = {"projection": projection, "qkv_bias": bias}
    x = tokens()
    before = peaks(layer(**given).eval(), x)
    threshold = float(before.max()) / 2.0
    assert (before > threshold).tolist() == [True, False, False]
    model = layer(options={"threshold": threshold}, **given)
    others = copy.deepcopy(model.state_dict())
    model(x)
    after_step(model)
    found = peaks(model.eval(), x)
    torch.testing.assert_close(found, before.clamp_max(threshold))
    values = ("v_proj", "out_proj") if projection == "separate" else ("out_proj",)
    for name, tensor in model.state_dict().items():
        if name.startswith(values):
            assert torch.equal(tensor, others[name])


def test_below_the_threshold_training_is_that_of_standard() -> None:
    """Bit for bit, also with no threshold at all."""
    states = []
    for variant, options in (
        ("standard", {}),
        ("qk_clip", {"threshold": 1e6}),
        ("qk_clip", {"threshold": math.inf}),
    ):
        model = layer(variant, options=options)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(3):
            optimizer.zero_grad()
            model(tokens(step)).square().mean().backward()
            optimizer.step()
            after_step(model)
        states.append(model.state_dict())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], other[key]) for other in states[1:] for key in other)


def test_all_passes_since_the_last_step_count() -> None:
    """As in the accumulation of gradients; evaluation does not."""
    model = layer()
    parts = [tokens(seed) for seed in range(3)]
    expected = torch.stack([peaks(model.eval(), part) for part in parts]).amax(0)
    model.eval()(100.0 * tokens(9))
    model.train()
    for part in parts:
        model(part)
    torch.testing.assert_close(model.core.variant.peaks, expected)
    after_step(model)
    assert (model.core.variant.peaks == -torch.inf).all()
    before = copy.deepcopy(model.state_dict())
    after_step(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_only_visible_pairs_count_and_no_bias(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompute, "BLOCK_SCORES", 2 * HEADS * 7 * rows)
    x = tokens()
    real = torch.arange(7) < torch.tensor([5, 0])[:, None]
    hidden = torch.zeros(7, 7).double().masked_fill_(torch.eye(7) > 0, -torch.inf)
    for causal in (False, True):
        for masks in ({}, {"key_padding_mask": real}, {"bias": hidden}):
            model = layer(causal=causal)
            model(x, **{**masks, **({"bias": hidden + 1e4} if "bias" in masks else {})})
            torch.testing.assert_close(model.core.variant.peaks, peaks(model.eval(), x, **masks))


def test_a_head_that_sees_nothing_is_left_alone() -> None:
    model = layer(options={"threshold": 1e-3})
    before = copy.deepcopy(model.state_dict())
    model(tokens(), key_padding_mask=torch.zeros(2, 7, dtype=torch.bool))
    after_step(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_replicas_clip_by_the_largest_score_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sees a part of the batch; their weights stay equal."""
    models = [layer(options={"threshold": 40.0}) for _ in range(2)]
    for model, seed in zip(models, (1, 2), strict=True):
        model(tokens(seed))
    largest = torch.stack([model.core.variant.peaks for model in models]).amax(0)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda found, _: found.copy_(largest))
    for model in models:
        after_step(model)
    states = [model.state_dict() for model in models]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not torch.equal(states[0]["q_proj.weight"], layer().q_proj.weight)


def test_a_weight_that_is_computed_is_refused() -> None:
    """What is written into it would be lost."""
    model = layer()
    nn.utils.parametrizations.weight_norm(model.q_proj)
    model(tokens())
    with pytest.raises(ValueError, match=r"projection to q.*parametrization"):
        after_step(model)


@pytest.mark.parametrize("shape", [(0, 7, WIDTH), (2, 0, WIDTH)])
def test_an_empty_batch_has_no_largest_score(shape: tuple[int, ...]) -> None:
    model = layer()
    model(torch.zeros(shape).double())
    assert (model.core.variant.peaks == -torch.inf).all()


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.nan])
def test_a_threshold_is_above_zero(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold="):
        layer(options={"threshold": threshold})
