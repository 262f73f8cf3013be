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

from torch import nn

from .core import AttentionCore
from .recorder import Reading, Recorder

MODES = ("sampled", "exact")


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
        `entropy` the mean entropy in nats of the rows, scaled to sum to one where they do not; of
        several maps a head, the largest and the mean. Norms are those of the projected q and k
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
