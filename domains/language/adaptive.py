"""Softmax over a large vocabulary in clusters, without a tokens x vocabulary matrix.

The vocabulary is sorted by falling frequency and cut at `cutoffs` c_1 < c_2 < ...: the head holds
the first c_1 words and one entry for every cluster behind them,

    log p(w | h) = log softmax(head)[w]                                          w < c_1
    log p(w | h) = log softmax(head)[entry of i] + log softmax(cluster i)[w]     c_i <= w < c_(i+1)

an exact probability model at the cost of the head for most tokens. All clusters have the full
width, and with tied weights row w of the embedding scores word w.

Source: Grave et al. 2017, arXiv 1609.04309; order of the cluster entries, biases and full width as
in IDSIA/lmtool-fwp at 0159201 (Apache-2.0), `src/utils/proj_adaptive_softmax.py`, to which values
and gradients are equal (`tests/domains/language/test_vectors.py`). PyTorch's own
`nn.AdaptiveLogSoftmaxWithLoss` narrows its clusters and cannot be tied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

BLOCK_SCORES = 2**24
"""Scores that are there at one time: 64 MB in float32. Measured on a CPU, smaller blocks are slower
(each adds to the gradient of a whole cluster) and larger ones no faster."""


class AdaptiveSoftmax(nn.Module):
    """Log-likelihood of words under a softmax in clusters.

    Args:
        width: of the hidden vectors.
        vocabulary: number of words, sorted by falling frequency.
        cutoffs: first word of every cluster behind the head. Those at or beyond the end of the
            vocabulary fall away; without any this is an ordinary softmax.
        tied: whether the word vectors are handed over with each call.
        init_sd: standard deviation of the initial weights; biases start at 0.
    """

    def __init__(
        self, width: int, vocabulary: int, cutoffs: Sequence[int], *, tied: bool, init_sd: float
    ) -> None:
        super().__init__()
        starts = [0, *(cutoff for cutoff in cutoffs if cutoff < vocabulary), vocabulary]
        self.starts = tuple(starts[:-1])
        self.sizes = [after - before for before, after in pairwise(starts)]
        clusters = len(self.sizes) - 1
        self.weight = None if tied else nn.Parameter(init_sd * torch.randn(vocabulary, width))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        # Where there are none, not even an optimizer or other devices have to know of them.
        learned = clusters > 0
        self.cluster_weight = nn.Parameter(init_sd * torch.randn(clusters, width), learned)
        self.cluster_bias = nn.Parameter(torch.zeros(clusters), learned)

    def forward(self, hidden_td: Tensor, targets_t: Tensor, embedding_vd: Tensor) -> Tensor:
        """Natural logarithm of the probability of each target, (T,), float32 or wider.

        Args:
            hidden_td: (T, D) float.
            targets_t: (T,) int64 words.
            embedding_vd: (V, D) word vectors of the input, the scores' as well if they are tied.
        """
        words = embedding_vd if self.weight is None else self.weight
        # One split, because its gradient is one concatenation; slices would fill V x D each.
        weights, biases = torch.split(words, self.sizes), torch.split(self.bias, self.sizes)
        clusters = len(self.sizes) - 1
        starts = targets_t.new_tensor(self.starts[1:])
        cluster_t = torch.bucketize(targets_t.contiguous(), starts, right=True)
        # Entries stand behind the words of the head, in the reverse order of their clusters.
        entry_t = self.sizes[0] + clusters - cluster_t
        loss_t = linear_cross_entropy(
            hidden_td,
            torch.cat([weights[0], self.cluster_weight]),
            torch.cat([biases[0], self.cluster_bias]),
            torch.where(cluster_t == 0, targets_t, entry_t),
        )
        for i in range(1, clusters + 1):
            rows = (cluster_t == i).nonzero()[:, 0]
            inside = targets_t[rows] - self.starts[i]
            part = linear_cross_entropy(hidden_td[rows], weights[i], biases[i], inside)
            loss_t = loss_t.index_add(0, rows, part)
        return -loss_t

    def extra_repr(self) -> str:
        return f"sizes={self.sizes}, tied={self.weight is None}"


def linear_cross_entropy(
    hidden_td: Tensor, weight_vd: Tensor, bias_v: Tensor, targets_t: Tensor
) -> Tensor:
    """Cross-entropy of softmax(W h + b), (T,) in nats, float32 or wider.

    No more than :data:`BLOCK_SCORES` scores, or one row, are held at a time; the backward pass
    computes them again.

    Args:
        hidden_td: (T, D); weight_vd: (V, D); bias_v: (V,).
        targets_t: (T,) int64.
    """
    device, dtype = hidden_td.device.type, hidden_td.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    hidden, weight, bias = (tensor.to(dtype) for tensor in (hidden_td, weight_vd, bias_v))
    loss: Tensor = _LinearCrossEntropy.apply(hidden, weight, bias, targets_t)[0]
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    """With z = W h + b, s = log sum exp z and g the incoming gradient of the loss s - z_t:

    dz = g (exp(z - s) - onehot_t)     dh = dz W     dW = dz^T h     db = sum dz
    """

    @staticmethod
    def forward(
        hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        loss = torch.empty(targets.shape, dtype=wide, device=hidden.device)
        total = torch.empty_like(loss)
        with torch.autocast(hidden.device.type, enabled=False):
            for rows in _blocks(targets, weight):
                scores = torch.addmm(bias, hidden[rows], weight.T).to(wide)
                total[rows] = scores.logsumexp(-1)
                loss[rows] = total[rows] - scores.gather(1, targets[rows, None])[:, 0]
        return loss, total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, total = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=total.dtype)
        grad_bias = torch.zeros_like(bias, dtype=total.dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            for rows in _blocks(targets, weight):
                scores = torch.addmm(bias, hidden[rows], weight.T).to(total.dtype)
                scores.sub_(total[rows, None]).exp_()
                aims = targets[rows, None]
                scores.scatter_(1, aims, scores.gather(1, aims) - 1.0).mul_(grad[rows, None])
                grad_bias += scores.sum(0)
                scores = scores.to(hidden.dtype)
                grad_hidden[rows] = scores @ weight
                grad_weight += scores.T @ hidden[rows]
        return grad_hidden, grad_weight.to(weight.dtype), grad_bias.to(bias.dtype), None


def _blocks(targets: Tensor, weight: Tensor) -> Iterator[slice]:
    """Slices of the rows, of at most :data:`BLOCK_SCORES` scores each."""
    rows = max(1, BLOCK_SCORES // len(weight))
    return (slice(start, start + rows) for start in range(0, len(targets), rows))
