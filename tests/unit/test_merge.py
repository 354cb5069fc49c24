"""One claim, many machines: the summary against closed forms and simulation, and what may not be summed up."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from report_inputs import report_data
from specprefill_repro.errors import ReproError
from specprefill_repro.estimates.schema import Interval
from specprefill_repro.files import write_text
from specprefill_repro.merge.claims import Source, merge_claims
from specprefill_repro.merge.page import plain, render_merged, write_merged
from specprefill_repro.merge.random_effects import random_effects
from specprefill_repro.project import Project
from specprefill_repro.report.data import ReportData
from specprefill_repro.verdicts.schema import ConditionMatch, Word

EFFECTS = st.lists(st.tuples(st.floats(-2, 2), st.floats(0.01, 1)), min_size=2, max_size=8)


def paule_mandel(effects: np.ndarray, errors: np.ndarray) -> float:
    """The tau^2 at which the weighted sum of squares is what it should be; 0 when it is less at 0 already."""

    def excess(tau2: float) -> float:
        weights = 1 / (errors**2 + tau2)
        mean = (weights * effects).sum() / weights.sum()
        return float((weights * (effects - mean) ** 2).sum() - (len(effects) - 1))

    return float(optimize.brentq(excess, 0, 1e4)) if excess(0) > 0 else 0.0


@settings(max_examples=60, deadline=None)
@given(EFFECTS)
def test_the_summary_is_the_one_of_its_formulas(pairs: list[tuple[float, float]]) -> None:
    effects, errors = (np.array(values) for values in zip(*pairs, strict=True))
    found = random_effects(effects.tolist(), errors.tolist())
    tau2 = paule_mandel(effects, errors)
    assert found.tau2 == pytest.approx(tau2, rel=1e-3, abs=1e-5)
    weights = 1 / (errors**2 + found.tau2)
    mean = (weights * effects).sum() / weights.sum()
    scatter = (weights * (effects - mean) ** 2).sum() / (len(effects) - 1)
    error = math.sqrt(max(1.0, scatter) / weights.sum())
    half = stats.t.ppf(0.975, len(effects) - 1) * error
    assert (found.mean, found.error) == pytest.approx((mean, error), rel=1e-6, abs=1e-9)
    assert (found.low, found.high) == pytest.approx((mean - half, mean + half), rel=1e-6, abs=1e-9)
    fixed = 1 / errors**2
    q = (fixed * (effects - (fixed * effects).sum() / fixed.sum()) ** 2).sum()
    assert found.q == pytest.approx(q, rel=1e-6, abs=1e-9)
    assert found.i2 == pytest.approx(max(0.0, 1 - (len(effects) - 1) / q) if q > 1e-9 else 0.0, abs=1e-6)
    if len(effects) < 3:
        assert found.prediction is None
    else:
        wide = stats.t.ppf(0.975, len(effects) - 2) * math.sqrt(found.tau2 + error**2)
        assert found.prediction == pytest.approx((mean - wide, mean + wide), rel=1e-6, abs=1e-9)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """500 crowds of six machines that truly differ, from a fixed seed."""
    rng = np.random.default_rng(1)
    inside = predicted = 0
    for _ in range(500):
        errors = rng.uniform(0.02, 0.1, 6)
        found = random_effects(
            (0.5 + 0.15 * rng.standard_normal(6) + errors * rng.standard_normal(6)).tolist(), errors.tolist()
        )
        assert found.prediction is not None
        inside += found.low <= 0.5 <= found.high
        predicted += found.prediction[0] <= 0.5 + 0.15 * rng.standard_normal() <= found.prediction[1]
    assert 0.91 <= inside / 500 <= 0.98
    assert 0.91 <= predicted / 500 <= 0.99


@pytest.mark.parametrize(("effects", "errors"), [([1.0], [0.1]), ([1, 2], [0.1, 0]), ([1, math.nan], [1, 1]), ([], [])])
def test_what_can_not_be_summed_up_is_refused(effects: list[float], errors: list[float]) -> None:
    with pytest.raises(ValueError):
        random_effects(effects, errors)


@pytest.fixture(scope="module")
def report() -> ReportData:
    return report_data("gain", blocks=3)


def on(
    report: ReportData, chip: str, speedup: float, word: Word | None = None, differs: tuple[str, ...] = ()
) -> Source:
    """The report as if another machine had measured `speedup`, with an interval of a tenth either way."""
    interval = Interval(low=speedup / 1.1, high=speedup * 1.1, level=0.95)
    cells = tuple(
        cell.model_copy(update={"speedup": speedup, "interval95": interval, "degrees": 5})
        for cell in report.estimates.cells
    )
    conditions = tuple(
        ConditionMatch(condition=name.rstrip("?"), claimed="a", here="b", matches=None if name.endswith("?") else False)
        for name in differs
    )
    verdicts = tuple(
        verdict.model_copy(
            update={"measured": speedup, "interval95": interval, "conditions": conditions, "word": word or verdict.word}
        )
        for verdict in report.verdicts.verdicts
    )
    engines = {
        name: engine.model_copy(update={"environment": {**engine.environment, "chip": (chip,)}})
        for name, engine in report.estimates.engines.items()
    }
    return Source(
        chip,
        report.model_copy(
            update={
                "estimates": report.estimates.model_copy(update={"cells": cells, "engines": engines}),
                "verdicts": report.verdicts.model_copy(update={"verdicts": verdicts}),
            }
        ),
    )


def test_machines_are_the_units_and_each_has_the_error_of_its_interval(report: ReportData) -> None:
    merged = merge_claims([on(report, "A", 1.2), on(report, "B", 1.5), on(report, "C", 2.0)])
    claim = next(each for each in merged if each.effects)
    assert claim.machines == 3 and claim.effects is not None and claim.effects.prediction is not None
    error = math.log(1.1) / stats.t.ppf(0.975, 5)
    assert all(row.error == pytest.approx(error, rel=1e-6) for row in claim.rows)
    assert claim.effects.mean == pytest.approx(np.mean(np.log([1.2, 1.5, 2.0])), rel=1e-6)


def test_two_reports_of_one_kind_of_machine_count_as_one(report: ReportData) -> None:
    same = merge_claims([on(report, "A", 1.4), on(report, "A", 1.5)])
    assert all(each.effects is None and each.machines <= 1 for each in same)
    mixed = merge_claims([on(report, "A", 1.4), on(report, "A", 1.5), on(report, "B", 2.0)])
    assert {each.effects.units for each in mixed if each.effects} == {2}


@pytest.mark.parametrize(
    ("word", "differs", "counts"),
    [
        (Word.INVALID, (), False),
        (Word.NOT_RUN, (), False),
        (Word.NOT_COMPARABLE, ("hardware", "memory"), True),
        (Word.NOT_COMPARABLE, ("hardware", "target"), False),
        # Not stated: a verdict needs the draft, and not the engine's version.
        (Word.NOT_COMPARABLE, ("hardware", "engine version?"), True),
        (Word.NOT_COMPARABLE, ("hardware", "draft?"), False),
        (Word.NOT_COMPARABLE, (), False),
        (Word.SLOWER, (), True),
    ],
)
def test_what_differs_in_more_than_the_machine_does_not_count(
    report: ReportData, word: Word, differs: tuple[str, ...], counts: bool
) -> None:
    merged = merge_claims([on(report, "A", 1.2, word, differs), on(report, "B", 1.5, word, differs)])
    assert any(each.effects for each in merged) is counts
    assert all(row.left_out for each in merged for row in each.rows if row.effect is None)


def test_cards_that_differ_are_different_claims(report: ReportData) -> None:
    one, other = on(report, "A", 1.2), on(report, "B", 1.5)
    verdicts = tuple(
        verdict.model_copy(update={"claim": verdict.claim.model_copy(update={"tolerance": 0.5})})
        for verdict in other.data.verdicts.verdicts
    )
    changed = other.data.model_copy(update={"verdicts": other.data.verdicts.model_copy(update={"verdicts": verdicts})})
    assert not any(each.effects for each in merge_claims([one, Source("B", changed)]))


def test_the_page_shows_summary_prediction_and_heterogeneity(report: ReportData) -> None:
    sources = [on(report, "A", 1.2), on(report, "B", 1.5), on(report, "<b>C</b>", 2.0)]
    merged = [next(each for each in merge_claims(sources) if each.effects)]
    page = render_merged(sources, merged)
    for words in ("on 3 machines", "prediction interval", "I²", "tau²", "&lt;b&gt;C&lt;/b&gt;", "<svg"):
        assert words in page
    assert "<b>C" not in page
    assert plain(merged[0])["summary_of_log_speedups"]["units"] == 3


def test_nothing_to_merge_is_said(tmp_path: Path) -> None:
    write_text(tmp_path / "Snakefile", "")
    with pytest.raises(ReproError, match="nothing to merge"):
        write_merged(Project(tmp_path))
