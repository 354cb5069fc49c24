"""Quality: paired intervals against simulation and a second way of counting; sums by kind; perplexity."""

import math
from statistics import median

import numpy as np
import pytest
from scipy.stats import binom

from report_inputs import report_data
from specprefill_repro.estimates.build import build_estimates
from specprefill_repro.estimates.quality import median_interval, paired_difference_interval, quality_of
from specprefill_repro.report.quality import quality_tables
from specprefill_repro.study.schema import NeedleKind, Prompts
from synthetic_records import demo_study, synthetic_study_records


@pytest.mark.parametrize(("lost", "gained"), [(0.0, 0.0), (0.1, 0.0), (0.3, 0.1), (0.5, 0.2)])
@pytest.mark.parametrize("total", [6, 20, 100])
def test_the_paired_difference_is_covered(lost, gained, total):
    rng = np.random.default_rng(1)
    seen = rng.multinomial(total, [lost, gained, 1 - lost - gained], size=2000)
    found = [paired_difference_interval(int(a), int(b), total, 0.95) for a, b, _ in seen]
    covered = np.mean([interval.low <= gained - lost <= interval.high for interval in found])
    assert covered >= 0.93


def test_the_paired_difference_follows_its_formula_and_is_not_certain_of_nothing():
    # Bonett and Price 2012: shares (count + 1) / (n + 2).
    up, down = 3 / 42, 8 / 42
    half = 1.959964 * math.sqrt((up + down - (up - down) ** 2) / 42)
    found = paired_difference_interval(7, 2, 40, 0.95)
    assert (found.low, found.high) == (
        pytest.approx(up - down - half, rel=1e-5),
        pytest.approx(up - down + half, rel=1e-5),
    )
    nothing = paired_difference_interval(0, 0, 10, 0.95)
    assert nothing.low == pytest.approx(-nothing.high) and nothing.high > 0.2
    assert paired_difference_interval(0, 0, 0, 0.95) is None


@pytest.mark.parametrize("count", [6, 7, 12, 25])
def test_the_interval_of_the_median_is_made_of_the_ranks_that_the_binomial_gives(count):
    values = sorted(np.random.default_rng(count).exponential(size=count).tolist())
    found = median_interval(values, 0.95)
    low, high = values.index(pytest.approx(found.low)), values.index(pytest.approx(found.high))
    # As many values above as below, and together at most 5 % outside.
    assert low == count - 1 - high
    assert 2 * binom.cdf(low, count, 0.5) <= 0.05 < 2 * binom.cdf(low + 1, count, 0.5)
    assert found.low <= median(values) <= found.high


def test_too_few_values_have_no_interval_of_their_median():
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0], 0.95) is None
    assert median_interval([], 0.95) is None


def with_words(records, worse):
    """The records of a study that measured perplexity: the treated arm finds the words `worse` nats less likely."""
    first = {}
    for record in sorted(records, key=lambda record: (record.cell, record.block, record.position)):
        changes = {"answer_parts": {"a": True, "b": record.answer_found}}
        pair = (record.cell, record.block, record.prompt.id)
        if not record.treated:
            changes["answer_log_probabilities"] = (-0.1, -0.3)
        if pair in first:
            changes["forced_log_probabilities"] = (-0.1 - worse, -0.3 - worse)
        first[pair] = record
        yield record.model_copy(update=changes)


@pytest.fixture(scope="module")
def estimates():
    study = demo_study(prompts=Prompts(kinds=(NeedleKind.NUMBER, NeedleKind.SEVERAL), perplexity=True))
    made = synthetic_study_records(study, 1)
    records = list(with_words(made.records, math.log(1.5)))
    return records, build_estimates(study, records, made.receipts, made.gates, made.log_probabilities)


def test_perplexity_is_that_of_the_same_words_whichever_trial_ran_second(estimates):
    _, found = estimates
    for cell in found.cells:
        quality = cell.quality
        assert quality.perplexity_pairs == len(cell.pairs) == 6
        assert quality.dense_perplexity == pytest.approx(math.exp(0.2))
        assert quality.treated_perplexity == pytest.approx(1.5 * math.exp(0.2))
        assert quality.perplexity_ratio == pytest.approx(1.5)
        assert quality.perplexity_interval95.low == pytest.approx(1.5)


def test_kinds_add_up_to_what_the_records_say(estimates):
    records, found = estimates
    for cell in found.cells:
        for part in cell.quality.kinds:
            own = [r for r in records if r.cell == cell.cell and r.prompt.kind is part.kind]
            dense, treated = [r for r in own if not r.treated], [r for r in own if r.treated]
            assert part.pairs == len(dense) and part.parts == 2 * len(dense)
            assert part.dense == sum(r.answer_found for r in dense)
            assert part.treated == sum(r.answer_found for r in treated)
            assert part.treated - part.dense == part.gained - part.lost
            assert part.treated_parts == part.pairs + part.treated
            assert part.difference_interval95.low <= (part.gained - part.lost) / part.pairs
        assert sum(part.lost for part in cell.quality.kinds) == cell.answers_lost


def test_without_words_there_is_no_perplexity():
    study = demo_study()
    made = synthetic_study_records(study, 1)
    found = build_estimates(study, made.records, made.receipts, made.gates, made.log_probabilities)
    assert all(cell.quality.perplexity_ratio is None and not cell.quality.perplexity_pairs for cell in found.cells)
    assert quality_of([]).kinds == ()


def test_the_tables_hold_every_cell_kind_depth_and_length():
    data = report_data(verdicts=())
    tables = {table.title.partition(":")[0]: table for table in quality_tables(data)}
    measured = [cell for cell in data.estimates.cells if cell.pairs and cell.treatment != "placebo"]
    kinds = tables["Answers in full by kind of prompt"]
    assert len(kinds.rows) == sum(len(cell.quality.kinds) for cell in measured)
    words = tables["How far the words moved from those of dense prefill"]
    assert [row[0] for row in words.rows] and len(words.rows) == len(measured)
    grid = tables["Answers by depth, treated / dense"]
    assert all(len(row) == len(grid.columns) for row in grid.rows)
    shown = [text.split(" / ") for row in grid.rows for text in row[1:] if "/" in text]
    assert sum(int(dense) for _, dense in shown) > 0
