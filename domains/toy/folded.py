"""The pre-norm toy model for many weights at once, with few operations on tokens.

Shapes: M models, B samples, N tokens (with [CLS]), D = 20 width. The samples are the same for all
models. Exact up to rounding; nothing of size (M, B, N, D) is computed but the keys:

- With x the tokens, p the positions of a model, z = x + p and LN(z) = g (z - m) r + h, a key is

      W LN(z) + b = r (A x + A p) + W h + b,   A = W diag(g) (1 - 11'/D)

  so that the norm comes down to one number r a token, whose terms x.x, x.p and p.p are small
  products.
- The output of the attention is an average with weights a_j: W_V enters behind the average, and
  sum_j a_j (z_j - m_j) r_j falls into products with x, which is common to all models, and with p.
- The query is the same for all samples.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from attention import AttentionCore
from attention.variant import NEEDS_WEIGHTS
from domains.toy.generator import WIDTH
from domains.toy.model import CLS, Looks, ToyTransformer

CORE = "attention.core."


def can_be_folded(net: ToyTransformer) -> bool:
    """Whether :class:`FoldedNet` computes this model."""
    return net.placement == "pre" and averages_values(net.attention.core)


class FoldedNet:
    """M models at once.

    Args:
        net: one of the models, pre-norm.
        parameters: (M, ...) the weights of all, by name.
    """

    def __init__(self, net: ToyTransformer, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self._weights = _Weights(net.attention.core)
        self._own = {
            name.replace(CORE, "core."): parameter
            for name, parameter in parameters.items()
            if name.startswith(CORE)
        }
        self._eps: float = net.norm.eps  # type: ignore[assignment]  # all norms have the same

    def prepare(self, tokens_bnd: Tensor) -> Tensor:
        """What the other methods take: a zero token in the place of [CLS]; once for a split."""
        return F.pad(tokens_bnd, (0, 0, 1, 0))

    def logits(self, prepared: Tensor) -> Tensor:
        """(M, B, classes)."""
        return self._forward(prepared)[0]

    def evaluate(self, prepared: Tensor) -> tuple[Tensor, Looks]:
        """Logits, and what the [CLS] tokens look at, with a leading model axis."""
        logits, q, k, weights = self._forward(prepared)
        norms = q.norm(dim=-1)[:, None].expand(-1, len(prepared))
        return logits, Looks(k.norm(dim=-1), norms, weights)

    def _forward(self, prepared: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits, queries (M, D), keys (M, B, N, D), attention weights (M, B, N)."""
        p = self._parameters
        x = prepared
        start = p["embedding.token"] + p["embedding.positions"][:, CLS]
        positions = torch.cat([start[:, None], p["embedding.positions"][:, CLS + 1 :]], dim=1)
        mean, scale = self._moments(x, positions)

        # (M, 3 D, D) projections of q, k, v with weight and bias of the norm folded in.
        weight = torch.cat([p[f"attention.{name}_proj.weight"] for name in "qkv"], dim=1)
        bias = torch.cat([p[f"attention.{name}_proj.bias"] for name in "qkv"], dim=1)
        bias = torch.baddbmm(bias[:, :, None], weight, p["norm1.bias"][:, :, None])[:, :, 0]
        weight = weight * p["norm1.weight"][:, None]
        w_q, w_k, w_v = weight.chunk(3, dim=1)
        b_q, b_k, b_v = bias.chunk(3, dim=1)

        normed_start = F.layer_norm(start, (WIDTH,), eps=self._eps)
        q = torch.baddbmm(b_q[:, None], normed_start[:, None], w_q.mT)[:, 0]
        centred = (w_k - w_k.mean(2, keepdim=True)).mT
        projected = torch.bmm(x.flatten(0, 1).expand(len(q), -1, -1), centred)
        projected = projected.view(len(q), *x.shape).add_((positions @ centred)[:, None])
        k = (projected * scale[..., None]).add_(b_k[:, None, None])
        if k.requires_grad:
            # Its gradient comes with the last two axes swapped in memory, which all operations
            # that follow would be slow on.
            k.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]

        weights = self._attend(q, k)
        scaled = weights * scale
        average = (scaled.transpose(0, 1) @ x).transpose(0, 1)
        average = torch.baddbmm(average, scaled, positions)
        average = average - (scaled * mean).sum(2, keepdim=True)
        attended = torch.baddbmm(b_v[:, None], average, w_v.mT)

        cls = start[:, None] + self._linear("attention.out_proj", attended)
        hidden = F.gelu(self._linear("expand", self._norm("norm2", cls)))
        cls = cls + self._linear("contract", hidden)
        return self._linear("classify", self._norm("norm", cls)), q, k, weights

    def _moments(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and inverse standard deviation of x + p, both (M, B, N)."""
        cross = (x.transpose(0, 1) @ positions.permute(1, 2, 0)).permute(2, 1, 0)
        mean = x.mean(2) + positions.mean(2)[:, None]
        square = x.square().sum(2) + positions.square().sum(2)[:, None] + 2.0 * cross
        return mean, (square / WIDTH - mean.square() + self._eps).rsqrt()

    def _attend(self, q: Tensor, k: Tensor) -> Tensor:
        """(M, B, N) attention weights for q (M, D) and k (M, B, N, D).

        A core without parameters takes the models as further samples. One with parameters is
        mapped over the models, which costs more.
        """
        models, samples = k.shape[:2]
        q, k = q[:, None].expand(-1, samples, -1)[:, :, None, None], k[:, :, None]
        if not self._own:
            weights: Tensor = self._weights(q.flatten(0, 1), k.flatten(0, 1))
            return weights.view(models, samples, -1)

        def one(own: dict[str, Tensor], q: Tensor, k: Tensor) -> Tensor:
            result: Tensor = functional_call(self._weights, own, (q, k))
            return result

        mapped: Tensor = vmap(one)(self._own, q, k)
        return mapped.view(models, samples, -1)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self._parameters[f"{name}.weight"], self._parameters[f"{name}.bias"]
        return torch.baddbmm(bias[:, None], x, weight.mT)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self._parameters[f"{name}.weight"], self._parameters[f"{name}.bias"]
        normed = F.layer_norm(x, (WIDTH,), eps=self._eps)
        return torch.addcmul(bias[:, None], normed, weight[:, None])


class _Weights(nn.Module):
    """The attention weights of a core, as a module that `functional_call` can call."""

    def __init__(self, core: AttentionCore) -> None:
        super().__init__()
        self.core = core

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self.core.probabilities(q, k, k)


def averages_values(core: AttentionCore) -> bool:
    """Whether the output is the values times weights that sum to 1 and ignore the values.

    Found out by trying, unless the variant says that it does something else.
    """
    variant = core.variant
    if not variant.averages_values or NEEDS_WEIGHTS in variant.capabilities:
        return False
    core = copy.deepcopy(core).double()
    generator = torch.Generator().manual_seed(0)
    shape = 3, core.context.heads, 5, core.context.head_dim
    q, k, v = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
    q = q[:, :, :1]
    with torch.no_grad():
        weights = core.probabilities(q, k, k)
        sums = torch.ones_like(weights[..., 0])
        return torch.allclose(weights.sum(-1), sums) and torch.allclose(weights @ v, core(q, k, v))
