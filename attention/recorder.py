"""Running statistics of one attention layer; :mod:`attention.telemetry` attaches it to models."""

from __future__ import annotations

import torch
from torch import Tensor

from . import kernels
from .compiling import not_compiled
from .maps import add_mask
from .normalize import widen
from .recompute import BLOCK_SCORES
from .variant import Call, Prepared

TINY = 1e-30
"""Lower bound of the sum of a row of weights, where entropy scales it to one."""

Reading = dict[str, list[float]]
"""Statistics of a layer by name, an entry a head."""


class Recorder:
    """Running statistics of one layer, kept on its device.

    Args:
        rows: number of query positions to look at; None = all.
    """

    def __init__(self, rows: int | None) -> None:
        self.active = True
        self._rows = rows
        self._maxima: dict[str, Tensor] = {}
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, Tensor] = {}

    @not_compiled
    def record(self, q: Tensor, k: Tensor, prepared: Prepared, call: Call) -> None:
        """Add one forward pass.

        Args:
            q, k: (B, H, N, D) as projected.
            prepared: what the variant made of them.
            call: masks.
        """
        if not self.active or q.numel() == 0 or k.numel() == 0:
            return
        with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
            self._add_norms("query_norm", q, call.query_padding_mask)
            self._add_norms("key_norm", k, call.key_padding_mask)
            self._add_rows(prepared, call)

    def take(self) -> Reading | None:
        """Statistics so far, then start anew; None if nothing was seen."""
        # A layer that saw padding only has counts of zero and nothing to say.
        seen = bool(self._counts) and all(bool(count.min() > 0) for count in self._counts.values())
        reading = None
        if seen:
            maxima = {name: value.tolist() for name, value in self._maxima.items()}
            means = {
                name: (value / self._counts[name]).tolist() for name, value in self._sums.items()
            }
            reading = {
                "max_logit": maxima["max_logit"],
                "query_norm_mean": means["query_norm"],
                "query_norm_max": maxima["query_norm"],
                "key_norm_mean": means["key_norm"],
                "key_norm_max": maxima["key_norm"],
                "entropy": means["entropy"],
            }
        self._maxima, self._sums, self._counts = {}, {}, {}
        return reading

    def _add_norms(self, name: str, vectors: Tensor, mask: Tensor | None) -> None:
        norms = torch.linalg.vector_norm(widen(vectors), dim=-1)
        real = torch.ones_like(norms, dtype=torch.bool)
        if mask is not None:
            real = real & mask[:, None]
        self._add_mean(name, norms, real)
        self._add_maximum(name, norms, real)

    def _add_rows(self, prepared: Prepared, call: Call) -> None:
        nq, device = prepared.q.shape[-2], prepared.q.device
        if self._rows is None or self._rows >= nq:
            rows = torch.arange(nq, device=device)
        else:
            rows = torch.linspace(0, nq - 1, self._rows, device=device).round().long()
        for one_map in kernels.split_maps(prepared):
            self._add_map(one_map, call, rows)

    def _add_map(self, prepared: Prepared, call: Call, rows: Tensor) -> None:
        nk = prepared.k.shape[-2]
        keys = widen(prepared.k).mT
        block = max(1, BLOCK_SCORES // (prepared.q.shape[:-2].numel() * nk))
        for part in torch.split(rows, block):
            logits = widen(prepared.q.index_select(-2, part)) @ keys * prepared.scale
            if prepared.map is not None:
                logits = prepared.map.transform(logits)
            mask = kernels.attention_mask(prepared, call, causal=call.causal, rows=part)
            logits = add_mask(logits, mask)
            peaks = logits.amax(-1)
            real = peaks > -torch.inf
            if call.query_padding_mask is not None:
                real = real & call.query_padding_mask[:, None, part]
            weights = kernels.weights_of(prepared, logits)
            if prepared.sink is not None or prepared.map is not None:
                weights = weights / weights.sum(-1, keepdim=True).clamp_min(TINY)
            entropy = torch.special.entr(weights).sum(-1)
            self._add_maximum("max_logit", peaks, real)
            self._add_mean("entropy", entropy, real)

    def _add_mean(self, name: str, values: Tensor, real: Tensor) -> None:
        """Merge values of shape (B, H, N), those that are `real`, into the mean of `name`."""
        total = values.masked_fill(~real, 0.0).double().sum((0, 2))
        self._sums[name] = self._sums[name] + total if name in self._sums else total
        count = real.sum((0, 2))
        self._counts[name] = self._counts[name] + count if name in self._counts else count

    def _add_maximum(self, name: str, values: Tensor, real: Tensor) -> None:
        """The same for the maximum of `name`."""
        top = values.masked_fill(~real, -torch.inf).amax((0, 2))
        known = name in self._maxima
        self._maxima[name] = torch.maximum(self._maxima[name], top) if known else top
