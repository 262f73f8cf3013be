"""Statistics of attention while a model runs, without changing what it computes.

    with telemetry.attach(model, every=100) as watch:
        for batch in batches:
            train(batch)
            watch.step()
        watch.collect()

Off, it costs one comparison with None a layer. On, it draws no random numbers. A model whose inner
network was compiled runs with it, with one graph break a layer (so not with `fullgraph=True`);
attach it before the first compiled call to save a recompilation.
"""

from __future__ import annotations

from types import TracebackType

import torch
from torch import Tensor, nn

from . import kernels
from .core import AttentionCore
from .normalize import widen
from .recompute import BLOCK_SCORES
from .variant import Call, Prepared

MODES = ("sampled", "exact")

Reading = dict[str, list[float]]


def attach(model: nn.Module, *, mode: str = "sampled", every: int = 1, rows: int = 64) -> Telemetry:
    """Start to watch all attention layers of a model.

    Args:
        model: holds one or more :class:`AttentionCore`.
        mode: `"sampled"` looks at `rows` evenly spaced query positions and all their keys;
            `"exact"` at all query positions, in blocks. What is said of a row is exact in both.
        every: forward passes count in every `every`-th step only, the first step included.
        rows: number of query positions in the sampled mode.

    Raises:
        ValueError: an argument is out of range, the model has no attention layer, or it is being
            watched already.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is unknown; allowed: {', '.join(MODES)}")
    if every < 1 or rows < 1:
        raise ValueError(f"every={every} and rows={rows} must be at least 1")
    cores = {n: m for n, m in model.named_modules() if isinstance(m, AttentionCore)}
    if not cores:
        raise ValueError(f"{type(model).__name__} has no AttentionCore to watch")
    watched = [name for name, core in cores.items() if core.telemetry is not None]
    if watched:
        raise ValueError(f"{watched[0]} is being watched already; detach() the other telemetry")
    return Telemetry(cores, every, None if mode == "exact" else rows)


class Telemetry:
    """Watches the layers of one model until :meth:`detach`; see :func:`attach`."""

    def __init__(self, cores: dict[str, AttentionCore], every: int, rows: int | None) -> None:
        self._cores = cores
        self._every = every
        self._step = 0
        self._recorders = {name: Recorder(rows) for name in cores}
        for name, core in cores.items():
            core.telemetry = self._recorders[name]

    def step(self) -> None:
        """Tell that a training step is over."""
        self._step += 1
        for recorder in self._recorders.values():
            recorder.active = self._step % self._every == 0

    def collect(self) -> dict[str, Reading]:
        """Readings since the last call, by qualified name of the layer; a list entry a head.

        `max_logit` is the largest input of the softmax (with bias) among the visible pairs,
        `entropy` the mean entropy of the rows in nats; norms are those of the projected q and k
        before the variant. Padded tokens and rows that see no key are left out. Layers without a
        reading are missing.
        """
        readings = {}
        for name, recorder in self._recorders.items():
            reading = recorder.take()
            if reading is not None:
                readings[name] = reading
        return readings

    def detach(self) -> None:
        """Stop watching. What was not collected yet still can be."""
        for name, core in self._cores.items():
            if core.telemetry is self._recorders[name]:
                core.telemetry = None

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.detach()


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

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def record(self, q: Tensor, k: Tensor, prepared: Prepared, call: Call) -> None:
        """Add one forward pass.

        Args:
            q, k: (B, H, N, D) as projected.
            prepared: what the variant made of them.
            call: masks.
        """
        if not self.active:
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
        nq, nk = prepared.q.shape[-2], prepared.k.shape[-2]
        device = prepared.q.device
        if self._rows is None or self._rows >= nq:
            rows = torch.arange(nq, device=device)
        else:
            rows = torch.linspace(0, nq - 1, self._rows, device=device).round().long()
        keys = widen(prepared.k).mT
        block = max(1, BLOCK_SCORES // (prepared.q.shape[:-2].numel() * nk))
        for part in torch.split(rows, block):
            logits = widen(prepared.q.index_select(-2, part)) @ keys * prepared.scale
            mask = kernels.attention_mask(prepared, call, causal=call.causal, rows=part)
            logits = kernels.add_mask(logits, mask)
            peaks = logits.amax(-1)
            real = peaks > -torch.inf
            if call.query_padding_mask is not None:
                real = real & call.query_padding_mask[:, None, part]
            entropy = torch.special.entr(kernels.probabilities_of(logits)).sum(-1)
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
