"""Checks of kernels, precision, compilation and telemetry against explicit computation."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from attention import (
    AttentionCore,
    Call,
    Context,
    LayerState,
    kernels,
    recompute,
    registry,
    telemetry,
)
from attention.variant import NEEDS_STATE, Variant
from tests.conformance.listing import Options, check
from tests.conformance.models import (
    BATCH,
    DIM,
    HEADS,
    SHAPES,
    TOKENS,
    Seen,
    gradients,
    honours,
    padding,
    stack,
    tokens,
)
from tests.tolerances import assert_gradients, assert_values


def _heads(seed: int, *, length: int = TOKENS, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = BATCH, HEADS, length, DIM // HEADS
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def _state(variant: Variant, nk: int, mask: Tensor | None, dtype: torch.dtype) -> LayerState | None:
    """The state as layer 0 leaves it."""
    if NEEDS_STATE not in variant.capabilities:
        return None
    state = LayerState()
    values = _heads(40, length=nk, dtype=dtype)
    state.advance(0, values, mask)
    state.first_values(0, values)
    return state


@check
def fused_path_equals_reference(name: str, options: Options) -> None:
    """Values and gradients, in both precisions, under every combination of masks."""
    features = [f for f in ("padding", "bias", "causal") if honours(name, options, f)]
    subsets = [
        {f for bit, f in enumerate(features) if number >> bit & 1}
        for number in range(2 ** len(features))
    ]
    for used in [*subsets, {"cross"} if honours(name, options, "cross") else set()]:
        causal, cross = "causal" in used, "cross" in used
        nk = TOKENS + 2 if cross else TOKENS
        context = Context(
            HEADS, 4, 1, 2, causal, cross, layer_state=True, dim=DIM, projections=SHAPES
        )
        for dtype in (torch.float64, torch.float32):
            variant = registry.build(name, context, options).to(dtype)
            for index, parameter in enumerate(variant.parameters()):
                generator = torch.Generator().manual_seed(index)
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.data += 0.3 * noise.to(dtype)
            q, k, v = (_heads(s, length=n, dtype=dtype) for s, n in ((1, TOKENS), (2, nk), (3, nk)))
            x = tokens().to(dtype).requires_grad_()
            mask = padding((nk, 4, 0), nk) if "padding" in used else None
            bias = None
            if "bias" in used:
                bias = torch.randn(HEADS, TOKENS, nk, generator=torch.Generator().manual_seed(5))
                bias = bias.to(dtype).masked_fill_(torch.eye(TOKENS, nk).flip(1) > 0, -torch.inf)
            results = []
            for path in ("fused", "reference"):
                call = Call(mask, bias, causal, _state(variant, nk, mask, dtype), x=x)
                if path == "fused":
                    out = kernels.attend(variant.prepare(q, k, v, call), call)
                    out = variant.finish(variant.merge(out), call)
                else:
                    out = variant.reference(q, k, v, call)
                results.append((out, gradients(variant, out, q, k, v, x)))
            (out, grads), (expected, expected_grads) = results
            assert_values(out, expected, (used, dtype))
            for grad, expected_grad in zip(grads, expected_grads, strict=True):
                assert_gradients(grad, expected_grad, (used, dtype))


@check
def explicit_probabilities_equal_the_fused_path(name: str, options: Options) -> None:
    """Weights and logits, asked for in words, give the output."""
    model = stack(name, options)
    state, state_2 = LayerState(), LayerState()
    x = tokens()
    for layer in model.layers:
        seen = Seen(layer.core)
        weights = layer.probabilities(x, state=state)
        logits = layer.logits(x, state=state)
        assert weights.shape == (BATCH, HEADS, TOKENS, TOKENS)
        with seen:
            out = layer(x, state=state)
        assert_values(seen.out, seen.explicit(weights))
        if layer.core.variant.averages_values:
            assert_values(weights.sum(-1), torch.ones(BATCH, HEADS, TOKENS).double())
            if seen.is_softmax:
                assert_values(logits.softmax(-1), weights)
            projected = {}
            for role, (weight, bias) in layer.projections().items():
                projected[role] = layer.core.variant.reparametrize(role, weight), bias
            v = functional.linear(x, *projected["v"])
            v = v.view(BATCH, TOKENS, HEADS, -1).transpose(1, 2)
            heads = (weights @ v).transpose(1, 2).flatten(2)
            assert_values(out, functional.linear(heads, *projected["out"]))
        x = x + layer(x, state=state_2)


@check
def half_precision_stays_close(name: str, options: Options) -> None:
    """bfloat16 autocast, and a model in bfloat16, against float32."""
    model = stack(name, options).float()
    x = tokens().float()
    expected = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
    assert_values(out.bfloat16(), expected, "autocast")
    assert_values(copy.deepcopy(model).bfloat16()(x.bfloat16()), expected, "bfloat16 model")


@check
def compiles(name: str, options: Options) -> None:
    """As one graph, with the gradients of the eager model."""
    torch._dynamo.reset()
    model = stack(name, options)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    x = tokens().requires_grad_()
    out, expected = compiled(x), model(x)
    assert_values(out, expected)
    pairs = zip(gradients(model, out, x), gradients(model, expected, x), strict=True)
    for grad, expected_grad in pairs:
        assert_gradients(grad, expected_grad)


@check
def works_under_functional_transforms(name: str, options: Options) -> None:
    """A batch of models by `vmap`, with gradients, equals the models one by one."""
    models = [stack(name, options, seed=seed) for seed in (1, 2)]
    parameters, buffers = torch.func.stack_module_state(models)
    x = tokens()

    def loss(weights: dict[str, Tensor], others: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(models[0], (weights, others), (x,)).square().sum()

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
        grads = torch.vmap(torch.func.grad(loss))(parameters, buffers)
    for index, model in enumerate(models):
        expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()),
                                       allow_unused=True)  # fmt: skip
        for (key, _), grad in zip(model.named_parameters(), expected, strict=True):
            if grad is not None:
                assert_gradients(grads[key][index], grad, key)


@check
def dropout_drops_single_weights(name: str, options: Options) -> None:
    """With the mask written out, both CPU paths give the explicit result and its gradients."""
    core = AttentionCore(
        HEADS, 4, variant=name, options=options, dropout=0.4, dim=DIM, projections=SHAPES
    ).double()
    q, k, v, x = *(_heads(seed) for seed in (1, 2, 3)), tokens().requires_grad_()
    call = Call(x=x)
    prepared = core.variant.prepare(q, k, v, call)
    maps = prepared.q.shape[1] // HEADS

    def explicit(kept: Tensor | None) -> Tensor:
        weights = kernels.weights_of(prepared, core.logits(q, k, v))
        if kept is not None:
            weights = weights * kept.flatten(1, 2) / 0.6
        return core.variant.finish(core.variant.merge(weights) @ prepared.v, call)

    for limit in (2**18, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernels, "STORED_SCORES_LIMIT", limit)
            # Two rows a block, so that examples and rows are both split.
            patch.setattr(recompute, "BLOCK_SCORES", 2 * HEADS * TOKENS)
            torch.manual_seed(4)
            out = core(q, k, v, x=x)
            grads = gradients(core, out, q, k, v, x)
        torch.manual_seed(4)
        kept = torch.stack([_kept(in_blocks=limit == 0) for _ in range(maps)], 2)
        assert 0.5 < kept.double().mean() < 0.7
        expected = explicit(kept)
        assert_values(out, expected, limit)
        for grad, wanted in zip(grads, gradients(core, expected, q, k, v, x), strict=True):
            assert_gradients(grad, wanted, limit)
    core.eval()
    assert_values(core(q, k, v, x=x), explicit(None))


def _kept(*, in_blocks: bool) -> Tensor:
    """The mask (B, H, N, N) that one map draws next for a dropout of 0.4."""
    shape = torch.Size((BATCH, HEADS, TOKENS, TOKENS))
    if not in_blocks:
        return recompute.draw_kept(shape, 0.4)
    generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
    kept = torch.empty(shape, dtype=torch.bool)
    for example in range(BATCH):
        for row in range(0, TOKENS, 2):
            part = kept[example : example + 1, :, row : row + 2]
            part[:] = recompute.draw_kept(part.shape, 0.4, generator)
    return kept


@check
def scores_are_never_stored(name: str, options: Options) -> None:
    """Nothing of the size of all scores is kept for the backward pass."""
    length = 64
    sizes: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    cases: list[tuple[float, dict[str, Tensor]]] = [(0.0, {}), (0.1, {})]
    if honours(name, options, "bias"):
        cases.append((0.0, {"bias": torch.randn(length, length).double().requires_grad_()}))
    for dropout, masks in cases:
        model = stack(name, options, attention_dropout=dropout)
        x = tokens(length=length).requires_grad_()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernels, "STORED_SCORES_LIMIT", 0)
            # Small blocks, so that what the backward pass keeps for one of them is small, too.
            patch.setattr(recompute, "BLOCK_SCORES", HEADS * length * 8)
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                model(x, **masks).sum().backward()
    # The bias itself has a ninth of their size.
    assert max(sizes) < BATCH * HEADS * length**2 / 4


@check
def telemetry_equals_brute_force(name: str, options: Options) -> None:
    """It changes no output and no random number, and says what the explicit scores say."""
    masks: dict[str, Tensor] = {}
    if honours(name, options, "padding"):
        masks["key_padding_mask"] = padding((7, 4, 2))
    if honours(name, options, "bias"):
        masks["bias"] = torch.randn(HEADS, TOKENS, TOKENS, dtype=torch.float64)
        masks["bias"][:, 2, 1:5] = -torch.inf
    causal = honours(name, options, "causal")
    model = stack(name, options, causal=causal)
    x = tokens()
    expected = model(x, **masks)
    seen: list[dict[str, Any]] = []

    def look(core: AttentionCore, args: Any, kwargs: Any) -> None:
        q, k, v = args
        call = {**masks, "state": kwargs["state"]}
        logits = core.logits(q, k, v, **call)
        weights = core.probabilities(q, k, v, **call)
        if len(logits[0]) > HEADS:  # of several maps a head, each is looked at
            weights = logits.softmax(-1).nan_to_num()
        maps = [t.unflatten(1, (HEADS, -1)) for t in (logits, weights)]
        seen.append({"q": q, "k": k, "logits": maps[0], "weights": maps[1]})

    hooks = [layer.core.register_forward_pre_hook(look, with_kwargs=True) for layer in model.layers]
    real = masks.get("key_padding_mask", torch.ones(BATCH, TOKENS, dtype=torch.bool))
    for mode, count in (("exact", TOKENS), ("sampled", 4), ("sampled", 64)):
        seen.clear()
        before = torch.get_rng_state()
        with telemetry.attach(model, mode=mode, rows=count) as watch:
            assert torch.equal(model(x, **masks), expected)
            readings = watch.collect()
            assert not watch.collect()
        assert torch.equal(torch.get_rng_state(), before)
        assert list(readings) == ["layers.0.core", "layers.1.core"]
        rows = torch.arange(TOKENS) if count >= TOKENS else torch.tensor([0, 2, 4, 6])
        looked_at = real & torch.zeros(TOKENS, dtype=torch.bool).index_fill(0, rows, True)
        for reading, truth in zip(readings.values(), seen, strict=True):
            for head in range(HEADS):
                logits = truth["logits"][:, head].movedim(1, 2)[looked_at]
                weights = truth["weights"][:, head].movedim(1, 2)[looked_at]
                weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)
                wanted = {
                    "max_logit": logits.max(),
                    "entropy": -torch.xlogy(weights, weights).sum(-1).mean(),
                }
                for key in ("query", "key"):
                    norms = truth[key[0]][:, head][real].norm(dim=-1)
                    wanted |= {f"{key}_norm_mean": norms.mean(), f"{key}_norm_max": norms.max()}
                assert set(reading) == set(wanted)
                for key, value in wanted.items():
                    found = torch.tensor(reading[key][head], dtype=torch.float64)
                    assert_values(found, value, (mode, key))
    for hook in hooks:
        hook.remove()
