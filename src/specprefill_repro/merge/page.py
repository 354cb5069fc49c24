"""The page over many machines: reports/merged/index.html, and merged.json beside it."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import write_json, write_text
from specprefill_repro.merge.claims import MergedClaim, merge_claims
from specprefill_repro.merge.sources import LeftOut, Source, find_sources
from specprefill_repro.project import Project
from specprefill_repro.report import charts, numbers
from specprefill_repro.report.build import template_environment
from specprefill_repro.report.rows import SYMBOLS
from specprefill_repro.this_command import this_command


@dataclass(frozen=True)
class Merged:
    """What was written."""

    page: Path
    claims: list[MergedClaim]
    sources: list[Source]
    left_out: list[LeftOut]


def write_merged(project: Project) -> Merged:
    """Merge this checkout's reports with all imported ones.

    Raises:
        ReproError: there are no reports, or none that follows from its records.
    """
    sources, left_out = find_sources(project)
    if not sources and left_out:
        raise ReproError(
            "There is nothing to merge: every report is left out. "
            + " ".join(f"{each.name}: {each.why}" for each in left_out[:5]),
            "They were changed after they were made, or another version of this package made them.",
            "Make your own again (./reproduce), and fetch the others again from where they were published.",
            Exit.VERIFICATION,
        )
    if not sources:
        raise ReproError(
            "There is nothing to merge.",
            "This checkout has no report yet, and no bundle was imported.",
            f"Run a study (./reproduce), or import bundles: {this_command()} import bundle.zip",
        )
    merged = merge_claims(sources)
    page = project.merged_report
    data = {"claims": [plain(claim) for claim in merged], "left_out": [asdict(each) for each in left_out]}
    write_json(page.parent / "merged.json", data)
    write_text(page, render_merged(sources, merged, left_out))
    return Merged(page, merged, sources, left_out)


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


def render_merged(sources: list[Source], merged: list[MergedClaim], left_out: Sequence[LeftOut] = ()) -> str:
    """The page; the same bytes for the same reports."""
    environment = template_environment("specprefill_repro.merge")
    environment.globals.update(n=numbers, exp=math.exp, sqrt=math.sqrt)
    return environment.get_template("merged.html").render(
        sources=sources,
        merged=merged,
        left_out=left_out,
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
