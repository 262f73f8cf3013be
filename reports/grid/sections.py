"""Everything that a report says about grid studies, evaluated, laid out and drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from reports.across import Finding
from reports.frame import Frame
from reports.grid import courses, details, figures, probes, tables
from reports.grid.evaluation import StudyStats, evaluate_study
from reports.grid.families import Family, families, family_table
from reports.grid.probes import Probes
from reports.grid.published import published_rates
from reports.grid.studies import Study, arrange_studies
from reports.plots import Picture
from reports.table import Table

MAX_FIGURES = 3
"""Main studies of a report for which figures are drawn, the largest first."""


@dataclass(frozen=True)
class StudySection:
    """Tables and figures of one study.

    Attributes:
        stats: the study, evaluated.
        tables: laid out, success first.
        findings: in sentences.
        pictures: of the study.
        main: whether it stands by itself; smaller studies of a family stand behind the family.
    """

    stats: StudyStats
    tables: tuple[Table, ...]
    findings: tuple[Finding, ...]
    pictures: tuple[Picture, ...]
    main: bool

    @property
    def study(self) -> Study:
        """The runs."""
        return self.stats.study


@dataclass(frozen=True)
class FamilySection:
    """Table and figure of studies that differ in one setting."""

    family: Family
    table: Table
    picture: Picture | None


@dataclass(frozen=True)
class Grids:
    """All grid studies of a report.

    Attributes:
        studies: one section each.
        families: studies that differ in one setting.
        probes: readings of their runs.
    """

    studies: tuple[StudySection, ...] = ()
    families: tuple[FamilySection, ...] = ()
    probes: Probes = field(default_factory=Probes)

    @property
    def main(self) -> list[StudySection]:
        """Studies that stand by themselves."""
        return [section for section in self.studies if section.main]

    @property
    def further(self) -> list[StudySection]:
        """Smaller studies of a family."""
        return [section for section in self.studies if not section.main]

    @property
    def note(self) -> str:
        """Which figures were left out, empty if none."""
        if len(self.main) <= MAX_FIGURES:
            return ""
        return (
            f"Figures are drawn for the {MAX_FIGURES} largest grid studies only; choose others "
            "with protocol=... or recipe=... of the report command."
        )

    def tables(self) -> Iterator[Table]:
        """Every table, in the order of the report."""
        for section in self.studies:
            yield from section.tables
        for family in self.families:
            yield family.table

    def pictures(self) -> Iterator[Picture]:
        """Every figure, in the order of the report."""
        for section in self.studies:
            yield from section.pictures
        for family in self.families:
            if family.picture:
                yield family.picture

    def missing(self) -> list[tuple[StudySection, str, str]]:
        """Variants that more runs could complete: section, variant, the command that does."""
        return [
            (section, variant, section.study.missing_command(variant))
            for section in self.studies
            for variant in section.study.variants
            if section.study.missing(variant)
        ]


def build_grids(frame: Frame, *, draw: bool) -> Grids:
    """The grid studies of a report.

    Args:
        frame: all runs; readings are taken from its store if it has one.
        draw: whether to make figures.
    """
    studies = arrange_studies(frame.rows)
    found = frame.probes
    if studies and frame.root is not None:
        found = probes.read(frame.root, (row for study in studies for row in study.rows))
    related = families(studies, found)
    behind = {slug for family in related for slug in _smaller(family)}
    by_size = sorted(studies, key=lambda study: -len(study.places))
    drawn = [study.slug for study in by_size if study.slug not in behind][:MAX_FIGURES]
    sections = [
        _section(
            evaluate_study(study), found, study.slug not in behind, draw and study.slug in drawn
        )
        for study in studies
    ]
    together = [
        FamilySection(family, family_table(family), figures.over_setting(family) if draw else None)
        for family in related
    ]
    return Grids(tuple(sections), tuple(together), found)


def _smaller(family: Family) -> list[str]:
    """Slugs of the studies of a family that have fewer points than its largest."""
    sizes = {study.slug: len(study.points()) for study in family.studies.values()}
    return [slug for slug, size in sizes.items() if size < max(sizes.values())]


def _section(stats: StudyStats, found: Probes, main: bool, draw: bool) -> StudySection:
    made = (
        tables.success(stats),
        tables.by_column(stats),
        published_rates(stats),
        details.readings(stats, found),
        details.cost(stats),
        details.runs(stats),
    )
    pictures: tuple[Picture | None, ...] = ()
    if draw:
        pictures = (
            figures.heat_maps(stats),
            figures.accuracies(stats),
            courses.norms(stats, found),
            courses.attention(stats, found),
        )
    return StudySection(
        stats,
        tuple(table for table in made if table is not None),
        tuple(tables.findings(stats)),
        tuple(picture for picture in pictures if picture),
        main,
    )
