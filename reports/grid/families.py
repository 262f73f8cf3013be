"""Studies that differ in one setting: success and attention as a function of it.

Studies of a family need not have the same grid. They are compared at the points that all of them
have.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from reports import words
from reports.grid.evaluation import rate_of
from reports.grid.parts import rate_text
from reports.grid.places import order
from reports.grid.probes import Probes
from reports.grid.published import METRIC, quotes
from reports.grid.rates import DRAWS, Rate, Resampling
from reports.grid.studies import NOT_RUN, Study, StudyKey, called
from reports.labels import USUAL
from reports.parts import EMPTY
from reports.rows import variant_order
from reports.table import Item, Table, Value

PROTOCOL = "protocol"
ATTENTION_READING = "attention_unbiased"


@dataclass(frozen=True)
class Quoted:
    """Numbers of a reference beside a member of a family, None where there is none."""

    success: float | None
    attention: float | None


@dataclass(frozen=True)
class Member:
    """One variant at one value of the setting.

    Attributes:
        rate: of success, None without a run that ended.
        attention: mean mass on the answer of unbiased samples at the end, None without readings.
        quoted: what a reference run has.
        words: what became of runs that are missing.
    """

    rate: Rate | None
    attention: float | None
    quoted: Quoted
    words: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """Studies that differ in one setting.

    Attributes:
        name: the setting's key.
        slug: for file names and anchors, unique in a report.
        studies: by value of the setting, in its order.
        variants: that at least two of the studies have.
        points: values of the axes that all of the studies have.
        members: by variant and value.
    """

    name: str
    slug: str
    studies: Mapping[str, Study]
    variants: tuple[str, ...]
    points: frozenset[tuple[str, str]]
    members: Mapping[tuple[str, str], Member]

    @property
    def first(self) -> Study:
        """A study that shows what all share."""
        return next(iter(self.studies.values()))

    def context(self) -> str:
        """What the studies share, in words."""
        key = self.first.key
        settings = {name: v for name, v in key.settings().items() if name != self.name}
        setting = ", ".join(f"{name}={value}" for name, value in settings.items())
        if self.name == PROTOCOL:
            details = replace(key, protocol_version=0, setting=setting).details()
            return f"{key.domain} ({details})"
        return f"{key.title()} ({replace(key, setting=setting).details()})"

    def title(self) -> str:
        """Heading."""
        return f"Success by {called(self.name)}"


def families(studies: Sequence[Study], probes: Probes) -> list[Family]:
    """Every set of studies that differ in one setting, or in the protocol alone."""
    groups: dict[tuple[str, StudyKey], dict[str, Study]] = defaultdict(dict)
    named = {name for study in studies for name in study.key.settings()}
    for study in studies:
        settings = study.key.settings()
        for name in sorted(named):
            value = settings.get(name, USUAL.get(name))
            if value is None:
                continue
            rest = ", ".join(f"{k}={v}" for k, v in settings.items() if k != name)
            groups[(name, replace(study.key, setting=rest))][value] = study
        without = replace(study.key, protocol="", protocol_version=0)
        groups[(PROTOCOL, without)][study.key.protocol] = study
    found: list[Family] = []
    for (name, shared), members in groups.items():
        points = frozenset.intersection(*(study.points() for study in members.values()))
        if len(members) < 2 or not points:
            continue
        base = "-".join(p for p in (shared.domain, shared.protocol) if p)
        slug = f"{base}-by_{name.rpartition('.')[2]}"
        while any(slug == family.slug for family in found):
            slug += "_"
        ordered = dict(sorted(members.items(), key=lambda item: order(item[0])))
        family = _family(name, slug, ordered, points, probes)
        found += [family] if family.variants else []
    return found


def _family(
    name: str,
    slug: str,
    studies: Mapping[str, Study],
    points: frozenset[tuple[str, str]],
    probes: Probes,
) -> Family:
    found = Counter(variant for study in studies.values() for variant in study.variants)
    variants = sorted((v for v, count in found.items() if count > 1), key=variant_order)
    members = {
        (variant, value): _member(study, variant, points, probes)
        for value, study in studies.items()
        for variant in variants
    }
    return Family(name, slug, studies, tuple(variants), points, members)


def _member(
    study: Study, variant: str, points: frozenset[tuple[str, str]], probes: Probes
) -> Member:
    quoted = Quoted(
        _quoted(study.key, points, METRIC, variant),
        _quoted(study.key, points, f"probe/{ATTENTION_READING}", variant),
    )
    if variant not in study.variants:
        return Member(None, None, quoted, ("not run",))
    at = [(study.columns.index(c), study.lines.index(line)) for c, line in sorted(points)]
    codes = study.codes[variant][tuple(zip(*at, strict=True))][None]
    expected = sum(place[:2] in at for place in study.places)
    missing = expected - int((codes != NOT_RUN).sum())
    found = [
        probes.final[row.run_key][ATTENTION_READING]
        for place, row in study.by_variant[variant].items()
        if place[:2] in at and ATTENTION_READING in probes.final.get(row.run_key, {})
    ]
    return Member(
        rate_of(codes, Resampling(len(study.data), len(study.seeds))),
        float(np.mean(found)) if found else None,
        quoted,
        (f"not run {missing}/{expected}",) if missing else (),
    )


def _quoted(
    key: StudyKey, points: frozenset[tuple[str, str]], metric: str, variant: str
) -> float | None:
    found = [q.value for q in quotes(key, points, metric) if q.attention == variant]
    return found[0] if found else None


def family_table(family: Family) -> Table:
    """Success and attention of every variant at every value of the setting."""
    numbers = family.members.values()
    with_attention = any(member.attention is not None for member in numbers)
    quoted = any(member.quoted.success is not None for member in numbers)
    header = [called(family.name)]
    for variant in family.variants:
        header.append(f"{variant}: success, %")
        header += [f"{variant}: attention on unbiased answers"] if with_attention else []
    rows: list[list[Item]] = []
    records: list[dict[str, Value]] = []
    for value in family.studies:
        row = [Item(value)]
        for variant in family.variants:
            member = family.members[(variant, value)]
            row.append(_success(member))
            row += [_attention(member)] if with_attention else []
            records.append(_record(family, variant, value, member))
        rows.append(row)
    columns, lines = family.first.spec.axes
    at = ", ".join(f"{called(columns)} {c} and {called(lines)} {w}" for c, w in _sorted(family))
    notes = [
        f"At the points that all of the studies have: {at}.",
        f"95 % interval: bootstrap with {DRAWS:,} draws over data and initialisation seeds.",
    ]
    if with_attention:
        notes.append(
            "Attention on unbiased answers: mass that the read-out token puts on the answer of "
            "unbiased training samples after the last epoch, mean over all runs, whatever their "
            "outcome."
        )
    if quoted:
        notes.append(
            "Reference: an implementation of the same task and protocol of its own, made to settle "
            "what the paper leaves open; no paper printed its numbers."
        )
    return Table(
        f"{family.slug}_success",
        family.title(),
        family.context(),
        "Success in percent with its 95 % interval.",
        tuple(header),
        tuple(map(tuple, rows)),
        tuple(notes),
        tuple(records),
    )


def _sorted(family: Family) -> list[tuple[str, str]]:
    return sorted(family.points, key=lambda point: [order(value) for value in point])


def _success(member: Member) -> Item:
    badges = [*member.words, _reference(member.quoted.success, 0)]
    badge = ", ".join(text for text in badges if text)
    if member.rate is None:
        return Item("", badge or "not run", tone="muted")
    return Item(rate_text(member.rate), badge, sort=member.rate.percent)


def _attention(member: Member) -> Item:
    if member.attention is None:
        return EMPTY
    badge = _reference(member.quoted.attention, 2)
    return Item(words.number(member.attention, 2), badge, sort=member.attention)


def _reference(value: float | None, decimals: int) -> str:
    return "" if value is None else f"reference {words.number(value, decimals)}"


def _record(family: Family, variant: str, value: str, member: Member) -> dict[str, Value]:
    rate = member.rate
    interval = rate.interval if rate else None
    return {
        family.name: value,
        "attention": variant,
        "n": rate.n if rate else 0,
        "success": rate.percent if rate else None,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "reference_success": member.quoted.success,
        ATTENTION_READING: member.attention,
        f"reference_{ATTENTION_READING}": member.quoted.attention,
    }
