"""What only sigma-reparam does: the weights it makes of those that are learned."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attention import AttentionFactory, MultiHeadAttention, UnsupportedError, after_step
from attention.steps import adopt_weights, needs_steps
from tests.attention.pairs import assert_equal
from tests.tolerances import assert_values

WIDTH = 12


def layer(variant: str = "sigma_reparam", seed: int = 0, **options: object) -> MultiHeadAttention:
    torch.manual_seed(seed)
    return MultiHeadAttention(WIDTH, 3, variant=variant, **options).double()


def tokens() -> Tensor:
    return torch.randn(2, 7, WIDTH, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("projection", ["separate", "fused"])
def test_it_starts_as_standard(projection: str) -> None:
    """To the precision in which the start was found."""
    x = tokens()
    layers = [layer(name, projection=projection) for name in ("sigma_reparam", "standard")]
    torch.testing.assert_close(layers[0](x), layers[1](x), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("projection", ["separate", "fused"])
def test_with_the_gain_at_sigma_it_is_standard(projection: str) -> None:
    """Also after the weights have moved on; q, k and v of a fused weight are three."""
    x = tokens()
    reparametrised = layer(projection=projection)
    standard = layer("standard", projection=projection)
    with torch.no_grad():
        for one, two in zip(reparametrised.children(), standard.children(), strict=True):
            if isinstance(one, nn.Linear) and isinstance(two, nn.Linear):
                two.weight.copy_(one.weight.add_(torch.randn_like(one.weight)))
        variant = reparametrised.core.variant
        for name, (weight, _) in reparametrised.projections().items():
            variant.gain[name].copy_(variant.sigma(name, weight))
    assert_values(reparametrised(x), standard(x))


def test_the_norm_of_every_weight_is_its_gain() -> None:
    """After enough power iterations; the gradient follows that of the singular value."""
    reparametrised = layer()
    variant = reparametrised.core.variant
    with torch.no_grad():
        for name, (weight, _) in reparametrised.projections().items():
            weight.add_(torch.randn_like(weight))
            variant.gain[name].fill_(0.3)
    for _ in range(400):
        after_step(reparametrised)
    for name, (weight, _) in reparametrised.projections().items():
        used = variant.reparametrize(name, weight)
        assert torch.linalg.matrix_norm(used, 2).item() == pytest.approx(0.3, rel=1e-9)
        exact = 0.3 * weight / torch.linalg.matrix_norm(weight, 2)
        assert_equal(used, exact, weight)


def test_one_step_brings_the_estimate_closer() -> None:
    reparametrised = layer()
    variant = reparametrised.core.variant
    weight = reparametrised.q_proj.weight
    with torch.no_grad():
        weight.add_(torch.randn_like(weight))
        exact = torch.linalg.matrix_norm(weight, 2)
        estimates = []
        for _ in range(4):
            estimates.append(float(variant.sigma("q", weight)))
            after_step(reparametrised)
    assert estimates == sorted(estimates)
    assert estimates[0] < estimates[-1] <= float(exact) * (1 + 1e-12)


def test_a_stale_direction_is_harmless() -> None:
    """Weights drawn anew after the layer was built: between the root mean square and sigma."""
    reparametrised = layer()
    for weight, _ in reparametrised.projections().values():
        nn.init.normal_(weight, std=5.0)
    variant = reparametrised.core.variant
    for name, (weight, _) in reparametrised.projections().items():
        ratio = variant.sigma(name, weight) / torch.linalg.matrix_norm(weight, 2)
        assert 0.2 < ratio < 1.0
    adopt_weights(reparametrised)
    for name, (weight, _) in reparametrised.projections().items():
        used = variant.reparametrize(name, weight)
        torch.testing.assert_close(used, weight, rtol=1e-6, atol=1e-6)


def test_a_weight_of_zeros_can_leave_it() -> None:
    reparametrised = layer()
    nn.init.zeros_(reparametrised.out_proj.weight)
    adopt_weights(reparametrised)
    reparametrised(tokens()).sum().backward()
    grad = reparametrised.out_proj.weight.grad
    assert grad is not None
    assert grad.isfinite().all()
    assert (grad != 0).any()
    after_step(reparametrised)
    assert reparametrised.core.variant.direction_out.isfinite().all()


def test_training_goes_on_after_saving() -> None:
    one, two = layer(), layer(seed=1)
    after_step(one)
    two.load_state_dict(one.state_dict())
    for _ in range(2):
        after_step(one)
        after_step(two)
    x = tokens()
    assert torch.equal(one(x), two(x))


def test_only_some_variants_must_be_told_of_steps() -> None:
    assert needs_steps(nn.Sequential(layer("standard"), layer()))
    plain = nn.Sequential(layer("standard"), layer("quest"), nn.Linear(2, 2))
    assert not needs_steps(plain)
    after_step(plain)


def test_a_core_by_itself_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"'sigma_reparam' needs the weights.*MultiHead"):
        AttentionFactory("sigma_reparam").core(2, 4)
