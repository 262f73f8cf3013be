"""What torchmetrics' metrics have summed up, to be kept and put back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric


def states_of(module: nn.Module) -> dict[str, dict[str, Tensor]]:
    """States of all metrics that a module is or has, by the metric's name in it.

    Raises:
        TypeError: a state is a list: what was seen is kept, not summed up.
    """
    found: dict[str, dict[str, Tensor]] = {}
    for name, metric in _metrics(module).items():
        found[name] = {}
        for key, state in metric.metric_state.items():
            if not isinstance(state, Tensor):
                raise TypeError(f"state '{key}' of {type(metric).__name__} is no tensor")
            found[name][key] = state.clone()
    return found


def load_states(module: nn.Module, states: Mapping[str, Mapping[str, Any]]) -> None:
    """Put back what :func:`states_of` gave."""
    with torch.no_grad():
        for name, metric in _metrics(module).items():
            for key, state in states[name].items():
                getattr(metric, key).copy_(state)


def _metrics(module: nn.Module) -> dict[str, Metric]:
    return {name: child for name, child in module.named_modules() if isinstance(child, Metric)}
