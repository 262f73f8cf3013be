"""`data`: find or fetch a data set, prepare and check it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from benchmarks.plan import expand, parse
from domains.contract import DataCorrupt, DataUnavailable
from domains.registry import load as load_domain


def prepare(arguments: Sequence[str]) -> int:
    """Prepare the data sets named on the command line.

    Args:
        arguments: `NAME ...`, or `key=value` as for `run`; nothing: all sets of all domains.

    Returns:
        0 if all are ready, 3 if one is missing or damaged.
    """
    console = Console(soft_wrap=True, highlight=False)
    named = ",".join(a for a in arguments if "=" not in a)
    keys = [a for a in arguments if "=" in a]
    if named:
        keys.append(f"dataset={named}")
    if not any(key.startswith("domain=") for key in keys) and not named:
        keys.append("domain=all")
    missing = False
    for planned in expand(parse(["attention=standard", "seed=0", *keys])):
        cfg = planned.config
        domain = load_domain(cfg.domain)
        phase = domain.next_phase(cfg, [])
        assert phase is not None
        try:
            data = domain.build_data(cfg, phase)
            data.prepare_data()
            data.setup("fit")
        except (DataCorrupt, DataUnavailable) as error:
            missing = True
            what = "missing" if isinstance(error, DataUnavailable) else "damaged"
            console.print(f"[red]{cfg.dataset.name}: {what}.[/red]")
            console.print(str(error), markup=False)
            continue
        info = data.info
        sizes = ", ".join(f"{name} {size:,}" for name, size in info.sizes.items())
        console.print(f"[green]{cfg.dataset.name}[/green]: {info.kind}, {info.source}; {sizes}")
        for note in info.notes:
            console.print(f"  {note}", markup=False)
    return 3 if missing else 0
