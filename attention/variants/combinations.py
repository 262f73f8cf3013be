"""QUEST together with a mechanism that works on something else.

    quest+sink               a part of every row that goes to no key
    quest+gated              a gate on the output
    quest+value_residual     values mixed with those of the first layer
    quest+softcap            scores that bend towards a bound

The scores are q_i . k_j / |k_j|, everything else is as in the file of the second name, options
included. What changes queries, keys or their scale itself says how sharp attention is, as QUEST
does, and is not combined with it.

Sources: those of the two parts.
"""

from __future__ import annotations

from ..registry import register
from .gated import Gated, GatedConfig
from .quest import OnQuest
from .sink import Sink, SinkConfig
from .softcap import Softcap, SoftcapConfig
from .value_residual import ValueResidual, ValueResidualConfig


@register(
    "quest+sink",
    SinkConfig,
    summary="exp(s) / (exp(b_h) + sum exp(s)), s = q . k/|k|, b_h learned",
    source="QUEST 2026, arXiv 2604.00199; gpt-oss 2025",
)
class QuestSink(OnQuest, Sink):
    """exp(s) / (exp(b_h) + sum exp(s)), s = q . k/|k|, b_h learned."""


@register(
    "quest+gated",
    GatedConfig,
    summary="q . k/|k|; output times sigmoid(W_h x), W_h learned",
    source="QUEST 2026, arXiv 2604.00199; Qiu et al. 2025, arXiv 2505.06708",
)
class QuestGated(OnQuest, Gated):
    """q . k/|k|; output times sigmoid(W_h x), W_h learned."""


@register(
    "quest+value_residual",
    ValueResidualConfig,
    summary="q . k/|k|; v mixed with the first layer's",
    source="QUEST 2026, arXiv 2604.00199; Zhou et al. 2024, arXiv 2410.17897",
)
class QuestValueResidual(OnQuest, ValueResidual):
    """q . k/|k|; v mixed with the first layer's."""


@register(
    "quest+softcap",
    SoftcapConfig,
    summary="c tanh(q . k / (c |k|))",
    source="QUEST 2026, arXiv 2604.00199; Gemma 2, arXiv 2408.00118",
)
class QuestSoftcap(OnQuest, Softcap):
    """c tanh(q . k / (c |k|))."""
