"""The contract of an attention variant.

Legend of the shape suffixes and letters used in this package: B batch, H heads, N tokens (Nq
queries, Nk keys), D width of a head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from .maps import ScoreMap

REQUESTS = frozenset({"padding", "bias", "packed"})
"""What a model may pass to `forward`: a padding mask, an additive bias, packed sequences."""

ALL_CAPABILITIES = REQUESTS | {"causal", "cross"}
"""What a variant that only changes q, k, v and the scale can do."""

NEEDS_STATE = "needs_state"
"""Declared beside the capabilities by variants that look at the layers before."""

NEEDS_INPUT = "needs_input"
"""Declared beside the capabilities by variants that look at the tokens of the queries."""

NEEDS_WEIGHTS = "needs_weights"
"""Declared beside the capabilities by variants that look at the weights of the projections."""

NEEDS_STEPS = "needs_steps"
"""Declared beside the capabilities by variants that must be told of every optimizer step, see
:func:`~attention.steps.after_step`. One that is not told trains as something else."""

PROJECTIONS = ("q", "k", "v", "out")
"""The projections of a layer: to queries, keys, values, and from the heads to the output."""


class UnsupportedError(ValueError):
    """The variant cannot do what the model asks for. Raised when the model is built."""


@dataclass(frozen=True)
class Context:
    """Where in a model a layer stands; every variant is given the same.

    Args:
        heads: number of heads.
        head_dim: width D of the queries and keys of a head.
        layer: index of the layer, from 0.
        num_layers: number of attention layers that follow one another.
        causal: token i sees the keys up to its own position only. With Nk > Nq the queries are
            the last Nq positions of the keys.
        cross: keys and values come from another sequence than the queries.
        layer_state: the model hands one :class:`LayerState` a forward pass through its layers.
        requests: what the model will pass to `forward`, a subset of :data:`REQUESTS`; `None`
            when it does not say.
        dim: width of the tokens that the queries are projected from, where `forward` is given
            them; None where it is not.
        projections: shape (out, in) of the weight of each of :data:`PROJECTIONS`, where the layer
            lets its variant see and change them; None where it does not.

    Raises:
        ValueError: a count is below one, the layer is outside the model, or a request is unknown.
    """

    heads: int
    head_dim: int
    layer: int = 0
    num_layers: int = 1
    causal: bool = False
    cross: bool = False
    layer_state: bool = False
    requests: frozenset[str] | None = None
    dim: int | None = None
    projections: Mapping[str, tuple[int, int]] | None = None

    def __post_init__(self) -> None:
        for field in ("heads", "head_dim", "num_layers", "dim"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"{field}={value}: must be at least 1")
        if not 0 <= self.layer < self.num_layers:
            raise ValueError(
                f"layer={self.layer} is outside a model of num_layers={self.num_layers}; "
                "layers count from 0"
            )
        unknown = (self.requests or frozenset()) - REQUESTS
        if unknown:
            raise ValueError(
                f"requests={sorted(unknown)} unknown; allowed: {', '.join(sorted(REQUESTS))}"
            )


Projections = Mapping[str, tuple[Tensor, Tensor | None]]
"""Weight (out, in) and bias (out,) of each of :data:`PROJECTIONS`, as the model's own memory."""


class LayerState:
    """What one layer leaves for the next within one forward pass.

    A model that declares `layer_state=True` makes a new one in each forward pass and hands it to
    all its layers in order. Only variants that declare `"needs_state"` write to it, so for the
    others it costs nothing. It holds one layer at a time, and the first: recomputing single layers
    in the backward pass (activation checkpointing) is refused with an error instead of using the
    values of another layer.
    """

    def __init__(self) -> None:
        self.layer: int | None = None
        self.values: Tensor | None = None
        self.key_padding_mask: Tensor | None = None
        self.first: Tensor | None = None

    def copy(self) -> LayerState:
        """A state that can be advanced without advancing this one."""
        other = LayerState()
        other.layer, other.values = self.layer, self.values
        other.key_padding_mask = self.key_padding_mask
        other.first = self.first
        return other

    def advance(
        self, layer: int, v: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None] | None:
        """Leave the values of `layer`, take those of the layer before.

        Args:
            layer: index of the calling layer.
            v: (B, H, Nk, D) its values; kept without gradient.
            key_padding_mask: (B, Nk) bool, True = real token, or None.

        Returns:
            Values and padding mask of layer `layer - 1`, None for layer 0.

        Raises:
            ValueError: the layer before did not leave its values, or they have another shape.
        """
        before = self.layer, self.values, self.key_padding_mask
        if before[0] != (layer - 1 if layer else None):
            raise ValueError(
                f"state: layer {layer} was called after layer {before[0]}; make one LayerState() "
                "in each forward pass and hand it to the layers in order"
            )
        self.layer, self.values, self.key_padding_mask = layer, v.detach(), key_padding_mask
        if before[1] is None:
            return None
        if before[1].shape != v.shape:
            raise ValueError(
                f"state: values of layer {layer} have shape {tuple(v.shape)}, those of layer "
                f"{layer - 1} {tuple(before[1].shape)}; consecutive layers must agree"
            )
        return before[1], before[2]

    def first_values(self, layer: int, v: Tensor) -> Tensor | None:
        """Leave the values of layer 0, take them in the others.

        Args:
            layer: index of the calling layer.
            v: (B, H, Nk, D) its values; those of layer 0 are kept with their gradient.

        Returns:
            The values of layer 0; None for layer 0 itself.

        Raises:
            ValueError: layer 0 left nothing or was here before, or the shapes differ.
        """
        first = self.first
        if (first is None) != (layer == 0):
            known = "left its values already" if first is not None else "did not leave its values"
            raise ValueError(
                f"state: layer {layer} was called when layer 0 {known}; make one LayerState() in "
                "each forward pass and hand it to the layers in order"
            )
        if first is None:
            self.first = v
        elif first.shape != v.shape:
            raise ValueError(
                f"state: values of layer {layer} have shape {tuple(v.shape)}, those of layer 0 "
                f"{tuple(first.shape)}; they must agree"
            )
        return first


@dataclass
class Call:
    """What one forward pass asks of a variant, beside q, k and v.

    Args:
        key_padding_mask: (B, Nk) bool, True = real token; None = all real.
        bias: float, broadcastable to (B, H, Nq, Nk), added to the logits; may hold -inf.
        causal: see :class:`Context`.
        state: what the layer before left, see :class:`LayerState`.
        query_padding_mask: (B, Nq) bool, True = real token, as far as known. Never changes an
            output: telemetry leaves the padded rows out.
        x: (B, Nq, dim) tokens that the queries were projected from, see :class:`Context`.
    """

    key_padding_mask: Tensor | None = None
    bias: Tensor | None = None
    causal: bool = False
    state: LayerState | None = None
    query_padding_mask: Tensor | None = None
    x: Tensor | None = None


class Prepared(NamedTuple):
    """Input of one call of the kernels: softmax(scale q k^T + masks) v.

    A head may have several maps, whose queries and keys then stand side by side on the axis of
    the heads: M = H times as many, those of one head next to one another.

    Args:
        q: (B, M, Nq, D).
        k: (B, M, Nk, D).
        v: (B, H, Nk, Dv).
        scale: factor of the scores.
        sink: logit of one more key that every query sees and whose value is zero: a number, or
            a tensor (H, 1, 1). None = there is no such key.
        map: what stands in the place of the softmax, if anything does; not with a sink.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    sink: Tensor | float | None = None
    map: ScoreMap | None = None


class Variant(nn.Module, ABC):
    """An attention mechanism: what it makes of q, k, v and the scale before the kernels.

    Most need :meth:`prepare` alone. Around it there are hooks: on the weights of the projections
    (:meth:`reparametrize`, :meth:`adopt`), on the output (:meth:`merge`, :meth:`finish`), and
    after an optimizer step (:meth:`after_step`).

    A subclass lives in its own file of `variants/`, registers itself, and declares in
    `capabilities` what it can honour: `"causal"`, `"padding"`, `"bias"`, `"packed"`, `"cross"`,
    and what it needs: `"needs_state"`, `"needs_input"`, `"needs_weights"`, `"needs_steps"`. What
    it cannot honour for a special combination of options and context it refuses in `__init__` with
    :class:`UnsupportedError`.

    Args:
        config: instance of the dataclass that the variant was registered with.
        context: where the layer stands.
    """

    capabilities: ClassVar[frozenset[str]] = ALL_CAPABILITIES

    averages_values: ClassVar[bool] = True
    """Whether the output is the values averaged: weights that sum to one, and nothing else."""

    maps: ClassVar[int] = 1
    """Maps a head, see :class:`Prepared`."""

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__()
        self.config = config
        self.context = context

    @abstractmethod
    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        """What goes into the kernels.

        Args:
            q: (B, H, Nq, D) projected queries; k, v: (B, H, Nk, D) projected keys and values.
            call: masks and state. The kernel applies the masks; a variant needs them only where
                it computes something over tokens.
        """

    def merge(self, maps: Tensor) -> Tensor:
        """From the M maps to the H heads: (B, M, Nq, X) to (B, H, Nq, X), linear.

        Applied to the output of the kernel, X = Dv, and to attention weights, X = Nk.
        """
        return maps

    def finish(self, out: Tensor, call: Call) -> Tensor:
        """What leaves the layer, from the merged output (B, H, Nq, D) of the kernel."""
        return out

    def reparametrize(self, projection: str, weight: Tensor) -> Tensor:
        """The weight that is used for a projection in the place of the one that is learned.

        Args:
            projection: one of :data:`PROJECTIONS`.
            weight: (out, in).
        """
        return weight

    def adopt(self, projections: Projections) -> None:
        """Told the projections once their initial values are drawn."""

    def after_step(self, projections: Projections) -> None:
        """Told that an optimizer step is over; may change the projections in place."""

    @abstractmethod
    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """The output (B, H, Nq, D) in plain torch with an explicit softmax, for any dtype.

        Independent of :meth:`prepare` and of the kernels; the tests compare the two.
        """

    def parameter_tags(self) -> dict[str, str]:
        """Tag of each own parameter, see :mod:`attention.tags`. By default all are scales."""
        return {name: "scale" for name, _ in self.named_parameters()}
