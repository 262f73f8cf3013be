"""Which runs are trained together as one batched model."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Sequence

from benchmarks import config as configuration
from benchmarks.plan import Planned
from domains.registry import spec as domain_spec


def groups(runs: Sequence[Planned]) -> list[list[Planned]]:
    """Split runs into those that are trained together; most stay by themselves.

    A group differs in nothing but the seed and the keys that its domain names. Where there are
    more of them than a batch can use, the parts are of nearly equal size. The order of the runs
    decides that of the groups.
    """
    alike: dict[str, list[Planned]] = {}
    for planned in runs:
        common = _common(planned)
        if common is None or obstacle(planned) is not None:
            common = str(planned.key)
        alike.setdefault(common, []).append(planned)
    found: list[list[Planned]] = []
    for members in alike.values():
        together = domain_spec(members[0].key.domain).together
        size = 1 if together is None else together.size
        parts = math.ceil(len(members) / size)
        bounds = [round(len(members) * part / parts) for part in range(parts + 1)]
        found.extend(members[begin:end] for begin, end in itertools.pairwise(bounds))
    place = {planned.key: number for number, planned in enumerate(runs)}
    return sorted(found, key=lambda group: place[group[0].key])


def obstacle(planned: Planned) -> str | None:
    """Settings that a run would need to be trained with others of its domain, None if none."""
    config = planned.config
    together = {
        "launcher.together=true": planned.launcher.together,
        "telemetry=off": config.telemetry.mode == "off",
        "trainer.precision=32-true": config.trainer.precision == "32-true",
        "trainer.compile=false": not config.trainer.compile,
        "logger=none": config.logger.name == "none",
    }
    lacking = [setting for setting, given in together.items() if not given]
    return " ".join(lacking) or None


def obstacles(runs: Iterable[Planned]) -> list[str]:
    """Settings without which runs are trained by themselves that could be trained together."""
    lacking: dict[str, list[str]] = {}
    for planned in runs:
        common, lack = _common(planned), obstacle(planned)
        if common is not None and lack is not None:
            lacking.setdefault(common, []).append(lack)
    return sorted({lack for found in lacking.values() if len(found) > 1 for lack in found})


def in_words(runs: Sequence[Planned]) -> str:
    """How runs are trained together, or what keeps them from it; empty where none could be."""
    found = [group for group in groups(runs) if len(group) > 1]
    if found:
        return f"{sum(map(len, found))} of them are trained together, in {len(found)} groups"
    if reasons := obstacles(runs):
        return f"each is trained by itself: training together needs {', '.join(reasons)}"
    return ""


def _common(planned: Planned) -> str | None:
    """Equal for runs that their domain can train together; None if it offers no such thing."""
    config = planned.config
    together = domain_spec(config.domain).together
    if together is None or config.attention.name in together.excluded:
        return None
    computed = configuration.identity(config, without=together.keys)
    return json.dumps(computed, sort_keys=True) + repr((config.trainer, planned.launcher))
