"""What holds for a swap in every kind of model."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from attention import swap
from tests.attention.swapping.models import CASES, Case, scale_keys

EXACT = {"atol": 1e-6, "rtol": 1e-6}
COMPILED = ("encoder", "decoder", "gps")
"""Kinds for the tests that compile, which take seconds each."""


@pytest.fixture(params=CASES)
def single(request: pytest.FixtureRequest) -> Case:
    """Every model in float32."""
    return CASES[request.param]()


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    """Every model in float64, in which rounding hides nothing."""
    torch.set_default_dtype(torch.float64)
    yield CASES[request.param]()
    torch.set_default_dtype(torch.float32)


def states(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_standard_changes_no_output_and_no_parameter(case: Case, grad: bool) -> None:
    model = case.model
    with torch.set_grad_enabled(grad):
        parameters, before, expected = dict(model.named_parameters()), states(model), case.run()
        swap(model, "standard")
        torch.testing.assert_close(case.run(), expected, **EXACT)
    after = dict(model.named_parameters())
    assert list(after) == list(parameters)
    assert all(after[name] is parameters[name] for name in after)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_after_quest_the_scale_of_the_keys_changes_no_output(case: Case) -> None:
    original = case.run()
    scale_keys(case.model, 7.0)
    assert not torch.allclose(case.run(), original, atol=1e-3), "the scale matters to the original"
    scale_keys(case.model, 1 / 7.0)
    swap(case.model, "quest")
    expected = case.run()
    assert not torch.allclose(expected, original, atol=1e-3)
    scale_keys(case.model, 7.0)
    torch.testing.assert_close(case.run(), expected, **EXACT)


def test_undo_restores_the_original_bit_for_bit(case: Case) -> None:
    model = case.model
    expected, before = case.run(), states(model)
    text, kinds = repr(model), [type(module) for module in model.modules()]
    report = swap(model, "qknorm_hs")
    assert not torch.allclose(case.run(), expected, atol=1e-3)
    report.undo()
    assert torch.equal(case.run(), expected)
    assert repr(model) == text
    assert [type(module) for module in model.modules()] == kinds
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.raises(ValueError, match="undone already"):
        report.undo()


def test_gradients_reach_every_parameter(case: Case) -> None:
    swap(case.model, "quest+sink")
    case.run().square().sum().backward()
    missing = [name for name, p in case.model.named_parameters() if p.grad is None]
    assert not missing


def test_state_dict_loads_both_ways(case: Case) -> None:
    model = case.model
    original = states(model)
    report = swap(model, "quest")
    model.load_state_dict({name: tensor + 0.01 for name, tensor in original.items()})
    moved = states(model)
    expected = case.run()
    report.undo()
    model.load_state_dict(original)
    model.load_state_dict(moved)
    swap(model, "quest")
    torch.testing.assert_close(case.run(), expected, rtol=0, atol=0)


def test_learned_parameters_stand_under_the_module_and_load(case: Case) -> None:
    model = case.model
    original = states(model)
    report = swap(model, "qknorm_hs")
    added = {name: tensor for name, tensor in states(model).items() if name not in original}
    assert len(added) == len(report.replaced)
    assert all(name.endswith("core.variant.log_scale") for name in added)
    assert sum(each.added for each in report.replaced) == sum(map(Tensor.numel, added.values()))
    result = model.load_state_dict(original, strict=False)
    assert result.missing_keys == list(added)
    report.undo()
    assert model.load_state_dict({**original, **added}, strict=False).unexpected_keys == list(added)


def test_a_copy_computes_the_same_and_lives_its_own_life(case: Case) -> None:
    report = swap(case.model, "qknorm_hs")
    expected = case.run()
    twin = copy.deepcopy(case.model)
    report.undo()
    case.model.load_state_dict(twin.state_dict(), strict=False)
    again = swap(case.model, "qknorm_hs")
    case.model.load_state_dict(twin.state_dict())
    torch.testing.assert_close(case.run(), expected, rtol=0, atol=0)
    again.undo()
    assert list(twin.state_dict()) != list(case.model.state_dict()), "the copy stays swapped"


def test_pickling_through_a_state_dict(case: Case) -> None:
    swap(case.model, "qknorm_hs")
    expected, file = case.run(), io.BytesIO()
    torch.save(case.model.state_dict(), file)
    file.seek(0)
    with torch.no_grad():
        for parameter in case.model.parameters():
            parameter.zero_()
    case.model.load_state_dict(torch.load(file))
    torch.testing.assert_close(case.run(), expected, rtol=0, atol=0)


def test_single_precision(single: Case) -> None:
    expected = single.run()
    swap(single.model, "standard")
    torch.testing.assert_close(single.run(), expected, atol=2e-6, rtol=1e-6)


def test_autocast_runs_in_half_precision(single: Case) -> None:
    expected = single.run()
    swap(single.model, "standard")
    with torch.autocast("cpu", torch.bfloat16):
        out = single.run()
    assert out.isfinite().all()
    torch.testing.assert_close(out.float(), expected, atol=0.1, rtol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", COMPILED)
def test_a_compiled_model_computes_the_same(kind: str) -> None:
    case = CASES[kind]()
    swap(case.model, "quest")
    expected = case.run()
    case.model.compile(backend="aot_eager")
    torch.testing.assert_close(case.run(), expected, atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", COMPILED[:1])
def test_a_model_that_was_compiled_before_notices(kind: str) -> None:
    case = CASES[kind]()
    original = case.run()
    case.model.compile(backend="aot_eager")
    torch.testing.assert_close(case.run(), original, atol=2e-6, rtol=1e-6)
    report = swap(case.model, "quest")
    assert not torch.allclose(case.run(), original, atol=1e-3)
    report.undo()
    torch.testing.assert_close(case.run(), original, atol=2e-6, rtol=1e-6)
