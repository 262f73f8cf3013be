"""The command `speed`: choose cases, measure them, print and store the table."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import torch
from rich.console import Console

from attention import registry as attention_registry
from benchmarks.paths import results_dir
from benchmarks.provenance import collect
from benchmarks.speed import layers, output
from benchmarks.speed.measure import (
    QUICK,
    Effort,
    Row,
    compare,
    time_limit,
)
from benchmarks.suggest import unknown
from domains import registry as domain_registry
from domains.speed_cases import ActionFailedError, SpeedCase, TimeLimit

PARTS = ("layers", "domains", "engine")
WIDTH = 120
"""Columns of the table where the output is no terminal."""

KEYS = ("part", "domain", "attention", "device", "threads", "clock", "quick")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Options:
    """What the command line asks for.

    Attributes:
        parts: which of PARTS to measure.
        domains: domains whose training step is measured.
        variants: attention variants whose layer is measured.
        device: `cpu` or a CUDA device.
        threads: CPU threads of torch, by default one: that is what a run gets from the launcher,
            and several threads measure who else is using the cores.
        clock: `wall`, or `cpu` for the CPU time of the process, on a machine that others use.
        quick: small sizes and few samples, to see that everything works.
    """

    parts: tuple[str, ...]
    domains: tuple[str, ...]
    variants: tuple[str, ...]
    device: str
    threads: int
    clock: str
    quick: bool


def parse(arguments: Sequence[str]) -> Options:
    """Read `key=value` arguments; `domain=…` alone measures the domains alone.

    Raises:
        ValueError: an unknown key or value, or a device that is not there.
    """
    given: dict[str, str] = {}
    for argument in arguments:
        key, separator, value = argument.partition("=")
        if key not in KEYS:
            raise unknown("key", key, KEYS)
        if not separator or not value:
            raise ValueError(f"'{argument}': write {key}=VALUE")
        given[key] = value
    default_parts = "domains" if "domain" in given else "attention" in given and "layers"
    device = given.get("device", "cuda" if torch.cuda.is_available() else "cpu")
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"device={device}: allowed are cpu, cuda, cuda:0, cuda:1, …")
    if device != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"device={device}: torch finds no CUDA device here; use device=cpu")
    threads = given.get("threads", "1")
    if not threads.isdecimal() or int(threads) < 1:
        raise ValueError(f"threads={threads}: a number of at least 1 is needed")
    clock = given.get("clock", "wall")
    if clock not in CLOCKS:
        raise ValueError(f"clock={clock}: allowed are {', '.join(CLOCKS)}")
    if clock == "cpu" and device != "cpu":
        raise ValueError(f"clock=cpu: does not see the work of device={device}; use clock=wall")
    quick = given.get("quick", "false")
    if quick not in ("true", "false"):
        raise ValueError(f"quick={quick}: allowed are true, false")
    return Options(
        parts=_chosen("part", given.get("part") or default_parts or None, PARTS),
        domains=_chosen("domain", given.get("domain"), domain_registry.names()),
        variants=_chosen("attention", given.get("attention"), attention_registry.names()),
        device=device,
        threads=int(threads),
        clock=clock,
        quick=quick == "true",
    )


def _chosen(key: str, value: str | None, allowed: Sequence[str]) -> tuple[str, ...]:
    if value is None or value == "all":
        return tuple(allowed)
    names = tuple(value.split(","))
    for name in names:
        if name not in allowed:
            raise unknown(key, name, allowed)
    return names


def cases(options: Options) -> Iterator[SpeedCase | TimeLimit]:
    """All cases that were asked for."""
    if "layers" in options.parts:
        yield from layers.cases(
            device=options.device, quick=options.quick, variants=options.variants
        )
    modules = []
    if "domains" in options.parts:
        modules += [f"domains.{name}.speed" for name in options.domains]
    if "engine" in options.parts:
        modules.append("benchmarks.speed.engine")
    for module in modules:
        if importlib.util.find_spec(module) is not None:
            offered = importlib.import_module(module).cases
            yield from offered(device=options.device, quick=options.quick)


def measure(
    found: Iterable[SpeedCase | TimeLimit], options: Options, console: Console
) -> tuple[list[Row], list[str]]:
    """Measure one case after the other, saying which one is under way, and what came out.

    Returns:
        The rows, and what went wrong in cases that have none.
    """
    effort = replace(QUICK if options.quick else Effort(), clock=CLOCKS[options.clock])
    rows: list[Row] = []
    failures = []
    with console.status("speed") as status:
        for case in found:
            status.update(f"{case.group}: {case.name}")
            try:
                if isinstance(case, TimeLimit):
                    rows.append(time_limit(case))
                else:
                    rows.append(compare(case, device=options.device, effort=effort))
            except ActionFailedError as error:
                failures.append(f"{case.name}: {error}")
            else:
                console.print(output.line(rows[-1]), highlight=False)
    return rows, failures


def summary(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The few facts about the machine that belong beside every number."""
    machine = provenance["machine"]
    return {
        "device": provenance["device_name"],
        "cores": machine["cores"],
        "threads": provenance["threads"],
        "torch": torch.__version__,
        "commit": (provenance["source"]["commit"] or "unknown")[:12],
    }


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and write `RESULTS_DIR/speed/<time>.json` and `.md`.

    Returns:
        0, also when a target is missed: that is a finding. 1 if something could not be measured.

    Raises:
        ValueError: see :func:`parse`.
    """
    options = parse(arguments)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    try:
        rows, failures = measure(cases(options), options, console)
    finally:
        torch.set_num_threads(threads_before)
    provenance = collect(device=options.device, threads=options.threads)
    machine = summary(provenance) | {"clock": options.clock}
    output.show(rows, console)
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    written = output.write(rows, machine, provenance, results_dir() / "speed" / stamp)
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()))
    console.print("written: " + " ".join(str(path) for path in written))
    for failure in failures:
        print(f"not measured: {failure}", file=sys.stderr)
    return 1 if failures else 0
