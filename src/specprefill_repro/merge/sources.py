"""The reports that are merged: each recomputed from its records first, whoever made it and wherever it lies."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specprefill_repro.bundles.contents import read_report
from specprefill_repro.errors import ReproError
from specprefill_repro.project import MERGED, Project
from specprefill_repro.report.data import ReportData


@dataclass(frozen=True)
class Source:
    """One report."""

    name: str
    """Where it came from: `this checkout: STUDY`, or `imported: IDENTITY`."""
    data: ReportData
    """The estimates with all their pairs."""


@dataclass(frozen=True)
class LeftOut:
    """A report that is not merged."""

    name: str
    why: str


def find_sources(project: Project) -> tuple[list[Source], list[LeftOut]]:
    """The reports of this checkout, then the imported ones; and those that are not merged.

    A page that does not follow from its records is left out, and so is a second copy of the same page. The checkout's
    own come first, so that of two reports with the same trials its own is the one that counts.
    """
    sources: list[Source] = []
    left_out: list[LeftOut] = []
    names: dict[bytes, str] = {}
    for name, page in _pages(project):
        try:
            report = read_report(page)
        except ReproError as error:
            left_out.append(LeftOut(name, f"{error.what} {error.why}"))
            continue
        if report.page in names:
            left_out.append(LeftOut(name, f"It is the same report as {names[report.page]}."))
            continue
        names[report.page] = name
        sources.append(Source(name, report.data))
    return sources, left_out


def _pages(project: Project) -> Iterator[tuple[str, Path]]:
    for page in sorted((project.root / "reports").glob("*/index.html")):
        if page.is_file() and page.parent.name != MERGED:
            yield f"this checkout: {page.parent.name}", page
    for page in sorted((project.results / "imported").glob("[0-9a-f]*/index.html")):
        yield f"imported: {page.parent.name}", page
