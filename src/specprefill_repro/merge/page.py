"""The page over many machines: reports/merged/index.html, and merged.json beside it."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from markupsafe import Markup

from specprefill_repro.errors import ReproError
from specprefill_repro.files import read_limited, write_json, write_text
from specprefill_repro.merge.claims import MergedClaim, Source, merge_claims
from specprefill_repro.project import Project
from specprefill_repro.report import charts, numbers
from specprefill_repro.report.build import template_environment
from specprefill_repro.report.data import read_embedded
from specprefill_repro.report.rows import SYMBOLS
from specprefill_repro.verify import MAX_PAGE_BYTES

NAME = "merged"


def write_merged(project: Project) -> tuple[Path, list[MergedClaim]]:
    """Merge this checkout's reports with all imported ones; returns the page and what is on it.

    Raises:
        ReproError: there are no reports.
    """
    sources = find_sources(project)
    if not sources:
        raise ReproError(
            "There is nothing to merge.",
            "This checkout has no report yet, and no bundle was imported.",
            "Run a study (./reproduce), or import bundles: specprefill-repro import bundle.zip",
        )
    merged = merge_claims(sources)
    page = project.report(NAME)
    write_json(page.parent / "merged.json", [plain(claim) for claim in merged])
    write_text(page, render_merged(sources, merged))
    return page, merged


def find_sources(project: Project) -> list[Source]:
    """Imported reports, which were checked when they came, and the reports of this checkout.

    An imported report that is also one of this checkout's counts once.
    """
    pages = [
        (folder.name, folder / "index.html") for folder in sorted((project.results / "imported").glob("[0-9a-f]*"))
    ]
    own = sorted(path for path in (project.root / "reports").glob("*/index.html") if path.parent.name != NAME)
    pages += [(f"this checkout: {path.parent.name}", path) for path in own]
    found: dict[bytes, Source] = {}
    for name, path in pages:
        content = read_limited(path, MAX_PAGE_BYTES)
        found.setdefault(content, Source(name, read_embedded(content.decode(errors="replace"))))
    return list(found.values())


def plain(merged: MergedClaim) -> dict[str, Any]:
    """A merged claim as plain values: speed-ups as ratios, the summary on the scale of their logarithms."""
    return {
        "claim": merged.claim.model_dump(mode="json"),
        "machines": merged.machines,
        "summary_of_log_speedups": asdict(merged.effects) if merged.effects else None,
        "reports": [
            {
                "source": row.source,
                "machine": row.machine,
                "verdict": row.verdict.word.value,
                "measured": row.verdict.measured,
                "interval95": row.verdict.interval95.model_dump(mode="json") if row.verdict.interval95 else None,
                "log_speedup": row.effect,
                "standard_error": row.error,
                "left_out": row.left_out,
            }
            for row in merged.rows
        ],
    }


def render_merged(sources: list[Source], merged: list[MergedClaim]) -> str:
    """The page; the same bytes for the same reports."""
    environment = template_environment("specprefill_repro.merge")
    environment.globals.update(n=numbers, exp=math.exp, sqrt=math.sqrt)
    return environment.get_template("merged.html").render(
        sources=sources,
        merged=merged,
        symbols=SYMBOLS,
        forests={number: Markup(forest(claim)) for number, claim in enumerate(merged) if claim.machines},  # our own SVG
    )


def forest(merged: MergedClaim) -> str:
    """SVG: each report's speed-up with its interval, and below them the summary and the prediction."""
    points = [
        charts.Point(
            label=f"{number}: {row.machine}"[:60],
            value=row.verdict.measured,
            low=row.verdict.interval95.low,
            high=row.verdict.interval95.high,
            series="a report",
        )
        for number, row in enumerate(merged.rows, 1)
        if row.effect is not None and row.verdict.measured is not None and row.verdict.interval95 is not None
    ]
    found = merged.effects
    if found is not None:
        mean, low, high = math.exp(found.mean), math.exp(found.low), math.exp(found.high)
        points.append(charts.Point(label="mean of machines", value=mean, low=low, high=high, series="together"))
        if found.prediction is not None:
            low, high = map(math.exp, found.prediction)
            points.append(charts.Point(label="another machine", value=mean, low=low, high=high, series="together"))
    return charts.intervals(points, "speed-up", "ratio", 1.0)
