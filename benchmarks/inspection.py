"""`inspect`: one run shown before it is paid for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import yaml
from rich.console import Console
from rich.table import Table
from torch import Tensor

from attention import AttentionFactory
from benchmarks.config import RunConfig
from benchmarks.devices.weights import check_sharding
from benchmarks.plan import Planned
from domains.base import Domain, build_optimizer, parameter_counts
from domains.contract import DataSource, DataUnavailable, Phase
from domains.registry import load as load_domain


def inspect_run(planned: Planned) -> dict[str, Any]:
    """Everything that can be told about a run without training it.

    The model is built from the sizes in the configuration where they are known; only otherwise
    are the data loaded.
    """
    cfg = planned.config
    domain = load_domain(cfg.domain)
    phase = domain.next_phase(cfg, [])
    assert phase is not None
    source, sizes = _data(domain, cfg, phase)
    factory = AttentionFactory(cfg.attention.name, cfg.attention.options)
    module = domain.build_module(cfg, factory, sizes)
    check_sharding(cfg.trainer, module)
    steps_per_epoch = cfg.recipe.steps_in_epoch(sizes["train"])
    epochs = phase.max_epochs
    return {
        "run": str(planned.key),
        "hash": planned.key.hash,
        "config": cfg.to_dict(),
        "data": {"kind": source.kind, "source": source.description, "sizes": dict(sizes)},
        "parameters": parameter_counts(module),
        "steps": {
            "per_epoch": steps_per_epoch,
            "epochs": epochs,
            "total": phase.max_steps if epochs is None else epochs * steps_per_epoch,
        },
        "selection": phase.selection.describe() if phase.selection else "last epoch",
        "learning_rate": _learning_rates(cfg, phase, steps_per_epoch),
        "memory": _memory(domain, cfg, phase),
    }


def _data(domain: Domain, cfg: RunConfig, phase: Phase) -> tuple[DataSource, Mapping[str, int]]:
    sizes = domain.known_sizes(cfg)
    if cfg.synthetic or sizes is None:
        data = domain.tiny(cfg, phase) if cfg.synthetic else domain.build_data(cfg, phase)
        data.prepare_data()
        data.setup("fit")
        return DataSource(data.info.kind, data.info.source), data.info.sizes
    try:
        return domain.require_data(cfg), sizes
    except DataUnavailable:
        hint = f"not on this machine; `python run_all.py data {cfg.dataset.name}` says what to do"
        return DataSource(None, hint), sizes


def _learning_rates(cfg: RunConfig, phase: Phase, steps_per_epoch: int) -> list[dict[str, float]]:
    """Rate at the start of up to 11 epochs, first and last included."""
    schedule = cfg.recipe.schedule
    epochs = phase.max_epochs or math.ceil((phase.max_steps or 0) / steps_per_epoch)
    per_unit = 1 if schedule.interval == "epoch" else steps_per_epoch
    shown = sorted({round(i * (epochs - 1) / 10) for i in range(11)})
    return [
        {
            "epoch": epoch,
            "value": cfg.recipe.optimizer.lr * schedule.factor(epoch * per_unit, epochs * per_unit),
        }
        for epoch in shown
    ]


def _memory(domain: Domain, cfg: RunConfig, phase: Phase) -> dict[str, int]:
    """Bytes of weights, gradients and optimizer state, and of the activations of one batch.

    The batch is made up, with true shapes; activations are what autograd keeps for the backward
    pass of its loss, each storage counted once.
    """
    data = domain.tiny(cfg, phase)
    data.prepare_data()
    data.setup("fit")
    factory = AttentionFactory(cfg.attention.name, cfg.attention.options)
    module = domain.build_module(cfg, factory, data.info.sizes)
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        torch.autograd.backward(module.loss(next(iter(data.train_dataloader()))))
    optimizer = build_optimizer(module.net, cfg.recipe.optimizer)
    optimizer.step()
    weights = sum(p.numel() * p.element_size() for p in module.parameters())
    return {
        "weights_bytes": weights,
        "gradients_bytes": weights,
        "optimizer_bytes": sum(
            value.numel() * value.element_size()
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ),
        "activations_bytes": sum(kept.values()),
    }


def print_inspection(found: dict[str, Any], console: Console) -> None:
    """What :func:`inspect_run` found, for people."""
    console.print(f"[bold]{found['run']}[/bold]")
    console.print(yaml.safe_dump(found["config"], sort_keys=False).rstrip(), highlight=False)
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in _rows(found):
        table.add_row(name, value)
    console.print(table)


def _rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    data, steps, parameters = found["data"], found["steps"], found["parameters"]
    yield "data", f"{data['kind'] or 'kind unknown'}: {data['source']}"
    yield "sizes", ", ".join(f"{name} {size:,}" for name, size in data["sizes"].items())
    yield "parameters", f"{parameters['total']:,}, {parameters['attention']:,} in attention"
    for part, count in parameters["parts"].items():
        yield "", f"{count:,} {part}"
    yield "steps", f"{steps['per_epoch']:,} an epoch, at most {steps['total']:,}"
    yield "weights kept", found["selection"]
    rates = found["learning_rate"]
    constant = len({rate["value"] for rate in rates}) == 1
    yield (
        "learning rate",
        f"{rates[0]['value']:.3g}, constant"
        if constant
        else ", ".join(f"{rate['value']:.3g} (epoch {rate['epoch']})" for rate in rates),
    )
    for name, size in found["memory"].items():
        yield f"memory: {name.removesuffix('_bytes')}", f"{size / 2**20:,.1f} MiB"
