"""Executes one run inside a worker: data, model, phases, result."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from attention import AttentionFactory, UnsupportedError
from benchmarks import hardware, provenance
from benchmarks.config import RunConfig, hash_of
from benchmarks.devices import processes
from benchmarks.devices.weights import check_sharding
from benchmarks.examples import draw_examples
from benchmarks.files import set_aside
from benchmarks.fit import PhaseFit, weights_path
from benchmarks.resuming import phase_result
from benchmarks.store import CorruptFileError, Run, RunEnded
from domains.base import BenchmarkData, BenchmarkModule, Domain, parameter_counts
from domains.common.seeds import derive
from domains.contract import Phase, PhaseResult
from domains.registry import load as load_domain

SCHEMA = 1

Progress = Callable[[dict[str, Any]], None]
ShouldStop = Callable[[], str | None]


def execute(
    run: Run, config: Mapping[str, Any], progress: Progress, should_stop: ShouldStop
) -> None:
    """Train and evaluate one run, continuing where an interrupted attempt stopped.

    Args:
        run: where everything is written.
        config: a stored configuration (:meth:`RunConfig.to_dict`).
        progress: told about epochs, values and the time left.
        should_stop: asked between batches; a word ends the run with that state.

    Raises:
        RunEnded: the run diverged, was stopped, or its variant cannot serve this domain.
    """
    cfg = RunConfig.from_dict(config)
    with processes.world(cfg.trainer.devices, run, config):
        _execute(run, cfg, progress, should_stop)


def _execute(run: Run, cfg: RunConfig, progress: Progress, should_stop: ShouldStop) -> None:
    domain = load_domain(cfg.domain)
    hardware.set_numerics()
    device = hardware.device_name(cfg.trainer.accelerator)
    earlier_sources = _write_provenance(run, device)
    memory = hardware.PeakMemory(cfg.trainer.accelerator)
    done = _finished_phases(run)
    built: tuple[BenchmarkData, BenchmarkModule] | None = None
    while (phase := domain.next_phase(cfg, done)) is not None:
        built = build(domain, cfg, phase)
        fit = PhaseFit(run, cfg, phase, *built, progress, should_stop)
        done.append(fit.fit())
        run.write_json("phases.json", {"phases": [dataclasses.asdict(result) for result in done]})
        fit.discard_resume_point()
    if built is None:  # every phase was finished by an attempt that died before the result
        built = build(domain, cfg, _last_phase(domain, cfg, done))
        built[1].load_state_dict(torch.load(weights_path(run, done[-1].name)))
    data, module = built
    if not processes.is_witness():
        draw_examples(run, domain, cfg, module, data)
    result = make_result(domain, cfg, data, module, done, memory)
    if earlier_sources:
        result["notes"].append(f"begun under other code: {', '.join(earlier_sources)}")
    run.write_result(result)


def build(domain: Domain, cfg: RunConfig, phase: Phase) -> tuple[BenchmarkData, BenchmarkModule]:
    """Data and freshly initialised model of a phase.

    Weights come from a stream of their own, so that they depend on the seed alone: neither data
    nor the variant's own parameters shift them.
    """
    data = build_data(domain, cfg, phase)
    return data, build_module(domain, cfg, data)


def build_data(domain: Domain, cfg: RunConfig, phase: Phase) -> BenchmarkData:
    """Data of a phase, set up."""
    data = domain.tiny(cfg, phase) if cfg.synthetic else domain.build_data(cfg, phase)
    data.prepare_data()
    data.setup("fit")
    return data


def build_module(domain: Domain, cfg: RunConfig, data: BenchmarkData) -> BenchmarkModule:
    """Freshly initialised model, a function of configuration and seed alone.

    Raises:
        RunEnded: the variant cannot serve this domain.
        ValueError: the model cannot be trained as `cfg.trainer` asks.
    """
    torch.manual_seed(derive(cfg.seed, "initialisation"))
    factory = AttentionFactory(cfg.attention.name, cfg.attention.options)
    try:
        module = domain.build_module(cfg, factory, data.info.sizes)
    except UnsupportedError as error:
        raise RunEnded("skipped", str(error)) from error
    check_sharding(cfg.trainer, module)
    return module


def make_result(
    domain: Domain,
    cfg: RunConfig,
    data: BenchmarkData,
    module: BenchmarkModule,
    done: Sequence[PhaseResult],
    memory: hardware.PeakMemory,
    together: int = 1,
) -> dict[str, Any]:
    """What is stored as the result of a run.

    Args:
        domain: tells metrics and protocol.
        cfg: the run's configuration.
        data: what it was trained on.
        module: holds its trained weights.
        done: its phases; the times are this run's share.
        memory: peak since the run, or its whole group, began.
        together: how many runs were trained as one batched model.
    """
    protocol = domain.spec.protocols[cfg.protocol]
    infos = domain.metrics(cfg)
    primary = infos[0]
    last = done[-1]
    steps = sum(phase.steps for phase in done)
    phase = _last_phase(domain, cfg, done)
    notes = [note for note in (protocol.note, *data.info.notes) if note]
    if together > 1:
        notes.append(f"one of {together} runs trained together; times are its share of theirs")
    grid = domain.spec.grid
    return {
        "schema": SCHEMA,
        "domain": cfg.domain,
        "dataset": cfg.dataset.name,
        "model": cfg.model.name,
        "protocol": protocol.name,
        "protocol_version": protocol.version,
        "attention": cfg.attention.name,
        "attention_options": cfg.attention.options,
        "recipe": cfg.recipe.name,
        "budget": cfg.budget.name,
        "seed": cfg.seed,
        "hash": hash_of(cfg),
        "primary_metric": {
            "name": primary.name,
            "higher_is_better": primary.higher_is_better,
            "unit": primary.unit,
        },
        "metrics": dict(domain.summarize(cfg, done)),
        "metric_info": {
            metric.name: {
                "higher_is_better": metric.higher_is_better,
                "unit": metric.unit,
                "note": metric.note,
            }
            for metric in infos
        },
        "selected": {
            "phase": last.name,
            "epoch": last.selected_epoch,
            "step": last.selected_step,
            "rule": phase.selection.describe() if phase.selection else "last epoch",
        },
        "parameters": parameter_counts(module),
        "cost": {
            "seconds": sum(phase.seconds for phase in done),
            "seconds_per_step": sum(phase.train_seconds for phase in done) / max(1, steps),
            "steps": steps,
            "epochs": sum(phase.epochs for phase in done),
            "peak_memory_bytes": memory.peak(),
            "device": hardware.device_name(cfg.trainer.accelerator),
            "threads": torch.get_num_threads(),
            "devices": cfg.trainer.devices,
            "trained_together": together,
        },
        "data": dataclasses.asdict(data.info),
        "telemetry": _summary_of_telemetry(last),
        "notes": notes,
        **({} if grid is None else {"grid": dataclasses.asdict(grid)}),
    }


def _last_phase(domain: Domain, cfg: RunConfig, done: Sequence[PhaseResult]) -> Phase:
    phase = domain.next_phase(cfg, done[:-1])
    assert phase is not None
    return phase


def _summary_of_telemetry(last: PhaseResult) -> dict[str, float]:
    prefix = "telemetry/"
    for values in reversed(last.history):
        found = {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}
        if found:
            return found
    return {}


def _write_provenance(run: Run, device: str) -> list[str]:
    """Write how this attempt is made.

    Returns:
        Code versions of earlier attempts whose work this one builds on, where they differ.
    """
    try:
        before = run.provenance()
    except CorruptFileError as error:
        set_aside(error.path, "corrupt")
        before = {}
    now = provenance.collect(device=device, threads=torch.get_num_threads())
    own = _version_of(now)
    earlier = [*before.get("earlier_code", []), *([_version_of(before)] if before else [])]
    earlier = sorted({version for version in earlier if version != own})
    if not (run.path / "phases.json").exists() and not any(run.path.glob("checkpoints/*")):
        earlier = []
    run.write_json("provenance.json", {**now, "earlier_code": earlier})
    return earlier


def _version_of(found: Mapping[str, Any]) -> str:
    commit, dirty = found["source"]["commit"], found["source"]["dirty"]
    return f"{(commit or 'unknown')[:12]}{f'+{dirty}' if dirty else ''}"


def _finished_phases(run: Run) -> list[PhaseResult]:
    """Phases that earlier attempts finished; a damaged file is set aside, and all start anew."""
    path = run.path / "phases.json"
    if not path.exists():
        return []
    try:
        return [phase_result(raw) for raw in json.loads(path.read_text(encoding="utf-8"))["phases"]]
    except (ValueError, KeyError, TypeError):
        print(f"{path} is damaged and was set aside as {set_aside(path, 'corrupt')}")
        return []
