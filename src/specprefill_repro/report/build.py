"""Data to page: one self-contained HTML file, the same bytes for the same data."""

import math
import re
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from specprefill_repro.estimates.decoding import ENOUGH_TOKENS
from specprefill_repro.estimates.statistics import MIN_PAIRS
from specprefill_repro.plain_text import without_controls
from specprefill_repro.report import figures, numbers, quality, rows, rules
from specprefill_repro.report.answer import answer, failed_controls, margin, noise
from specprefill_repro.report.data import LISTED_TRIALS, ReportData, embedded
from specprefill_repro.report.engines import engine_section
from specprefill_repro.report.groups import LISTED_CELLS, cell_label, groups
from specprefill_repro.report.questions import questions
from specprefill_repro.trials.schema import PHASES
from specprefill_repro.trials.table import Trials
from specprefill_repro.verdicts.schema import ClaimKind, Word
from specprefill_repro.wording import counted

LISTED_REASONS = 40
"""So many cells without the expected gain, and so many blocks that do not count, get their reasons on the page."""


def render_report(data: ReportData, trials: Trials | None = None) -> str:
    """Return the page.

    Args:
        trials: all trials of the study; by default those that `data` holds.
    """
    trials = Trials.of_records(data.records) if trials is None else trials
    templates = template_environment()
    templates.globals.update(n=numbers, rows=rows, Word=Word, counted=counted)
    text = templates.get_template("page.html").render(_context(data, trials))
    # Indentation of the templates is a tenth of the page.
    return re.sub(r"\n\s+", "\n", text)


def template_environment(*packages: str) -> Environment:
    """Templates of these packages and of the report; they escape what they are given, and refuse what is missing."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in (*packages, "specprefill_repro.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=visible,
    )


def visible(value: Any) -> Any:
    """A value as it may be shown; see `without_controls`."""
    return without_controls(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _context(data: ReportData, trials: Trials) -> dict[str, Any]:
    judged, set_aside = rows.judged_and_set_aside(data.verdicts.verdicts)
    published = [v for v in data.verdicts.verdicts if v.claim.kind is not ClaimKind.EXPECTATION]
    published.sort(key=lambda verdict: -sum(bool(condition.matches) for condition in verdict.conditions))
    phases = figures.phase_figures(data)
    frame = trials.frame(rows.COLUMNS)
    return {
        "data": data,
        "answer": answer(data),
        "failed_controls": failed_controls(data),
        "tie_margin": math.expm1(margin(data)),
        "noise": noise(data),
        "least_pairs": MIN_PAIRS,
        "judged": [rows.verdict_row(verdict) for verdict in judged],
        "set_aside": set_aside,
        "published": [rows.verdict_row(verdict) for verdict in published],
        "busy": rows.busy(frame, data.estimates.environment.get("cores", ())),
        "synthetic": rows.synthetic_models(data),
        "unlocked": rows.unlocked_models(data),
        "roles": rows.roles(data),
        "compressed": rows.compressed(frame),
        "evidence": rows.evidence_rows(data, frame),
        "pitfalls": rows.pitfall_rows(data.gates),
        "decoding": rows.decoding_rows(groups(data, data.estimates.cells)),
        "enough_tokens": ENOUGH_TOKENS,
        "requests": rows.request_rows(data, frame),
        "environment": rows.environment(data),
        "trials": rows.by_cell(data, trials) if data.lists_trials else {},
        "pairs_shown": {cell.cell for cell in data.estimates.cells if cell.pairs and data.lists_trials},
        "number_of_trials": len(trials),
        "sums_up": len(data.estimates.cells) > LISTED_CELLS,
        "listed_reasons": LISTED_REASONS,
        "trial_limit": LISTED_TRIALS,
        "labels": {cell.cell: cell_label(cell) for cell in data.estimates.cells},
        "speed": figures.speed_figures(data),
        "phases": phases,
        "legend": figures.legend(phases),
        "phase_names": figures.PHASE_NAMES,
        "phase_keys": PHASES,
        "quality": figures.quality_figures(data),
        "quality_tables": quality.quality_tables(data),
        "rule_tables": rules.rule_tables(data),
        "rule_sources": rules.rule_sources(data),
        "engines": engine_section(data, trials),
        "controls": figures.control_figures(data),
        "canary": rows.canary_rows(data.receipts),
        "drift": figures.drift_figures(data, frame),
        "detailed_claims": figures.DETAILED_CLAIMS,
        "claims": figures.claim_figures(data),
        "questions": questions(data),
        "embedded": Markup(embedded(data)),  # JSON of base64 and hex digits
        "svg": Markup,  # of our own charts, whose text the renderer escapes
    }
