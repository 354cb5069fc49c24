"""The one sentence at the top must be right in every situation, whatever else the page says."""

import math

import pytest

from report_inputs import expectation, report_data, verdict
from specprefill_repro.report.answer import Outcome, Role, answer, failed_controls, headline_cell, role
from specprefill_repro.study.schema import Treatment
from specprefill_repro.verdicts.build import build_verdicts
from specprefill_repro.verdicts.matching import Facts
from specprefill_repro.verdicts.rules import MET, UNDECIDED
from specprefill_repro.verdicts.schema import Conditions, Rule, Word
from synthetic_records import World


@pytest.mark.parametrize(
    ("situation", "outcome", "headline", "says"),
    [
        ("gain", Outcome.GAIN, "Yes", "as fast as dense prefill (95"),
        ("tie", Outcome.TIE, "No difference", "within the tie margin"),
        ("loss", Outcome.LOSS, "No, it is slower", "took 1.33"),
        ("inconclusive", Outcome.INCONCLUSIVE, "Not settled", "cannot be told from no difference"),
        ("invalid", Outcome.INVALID, "No answer: a check failed", "kept keys at true positions"),
        ("not run", Outcome.NOT_RUN, "Not run", "nothing has been measured"),
    ],
)
def test_says_what_was_found_on_a_natural_pair(situation: str, outcome: Outcome, headline: str, says: str) -> None:
    found = answer(report_data(situation, natural=True))
    assert found.outcome is outcome
    assert found.headline == headline
    assert says.lower() in found.sentence.lower()


def test_never_presents_a_padded_target_as_a_natural_model() -> None:
    found = answer(report_data("gain"))
    assert found.headline == "Yes, on the positive control"
    assert "not a natural model" in found.sentence


def test_says_that_the_negative_control_lost() -> None:
    assert "own draft it was slower, as it must be" in answer(report_data("gain")).sentence


def test_names_the_price_beside_the_gain() -> None:
    assert "lost none of the 6 answers" in answer(report_data("gain", answers_lost=0.0)).sentence
    assert "lost 6 of the 6 answers" in answer(report_data("gain", answers_lost=1.0)).sentence


def test_gives_the_reason_of_a_loss() -> None:
    assert "Cause: The draft costs as much" in answer(report_data("loss")).sentence


def test_a_failed_ruler_takes_the_answer_back() -> None:
    data = report_data("gain", natural=True)
    own = headline_cell(data, "self")
    assert own is not None
    card = expectation("ruler", Rule.SLOWER, "A model as its own draft is slower.", "self", Treatment.SPECULATIVE)
    failed = (verdict(card, own, Word.NOT_REPRODUCED, "It is not slower."),)
    found = answer(report_data("gain", natural=True, verdicts=failed))
    assert found.outcome is Outcome.INVALID
    assert "does not count" in found.sentence and "ruler" in found.sentence


@pytest.mark.parametrize("word", [*MET, *UNDECIDED])
def test_a_ruler_that_found_more_or_is_not_decided_leaves_the_answer(word: Word) -> None:
    data = report_data("gain", natural=True)
    own = headline_cell(data, "self")
    assert own is not None
    card = expectation("ruler", Rule.PREDICTED, "The gain that the parts predict.", "self", Treatment.SPECULATIVE)
    found = report_data("gain", natural=True, verdicts=(verdict(card, own, word, "It lies above."),))
    assert failed_controls(found) == [] and answer(found).outcome is Outcome.GAIN


def test_speaks_for_a_pair_with_its_longest_prompt_and_usual_keep_rate_not_with_its_best_cell() -> None:
    data = report_data("gain")
    cell = headline_cell(data, "padded")
    assert cell is not None and (cell.length, cell.nominal_keep) == (1024, 0.2)
    best = max(c.speedup or 0 for c in data.estimates.cells if c.treatment is Treatment.SPECULATIVE)
    assert best > (cell.speedup or 0)


def test_noise_does_not_turn_into_a_tie() -> None:
    loud = World(noise=0.3, true_ratio={"padded-*-speculative-*": 1.0})
    data = report_data(world=loud, natural=True, blocks=4)
    assert data.estimates.placebo_margin is not None and data.estimates.placebo_margin > 0.1
    assert answer(data).outcome is Outcome.INCONCLUSIVE


def test_four_pairs_settle_nothing() -> None:
    assert answer(report_data("gain", natural=True, blocks=2)).outcome is Outcome.INCONCLUSIVE


def test_tells_controls_from_natural_pairs() -> None:
    assert {pair: role(report_data("not run"), pair) for pair in ("padded", "self")} == {
        "padded": Role.POSITIVE,
        "self": Role.NEGATIVE,
    }
    assert role(report_data("not run", natural=True), "padded") is Role.NATURAL


@pytest.mark.parametrize("blocks", [1, 2])
def test_too_few_pairs_are_said_to_be_too_few_and_nothing_else(blocks: int) -> None:
    sentence = answer(report_data("loss", natural=True, blocks=blocks)).sentence
    assert f"only {2 * blocks} pairs of trials count" in sentence and "a verdict needs 5" in sentence
    assert "cannot be told" not in sentence and "interval" not in sentence


def test_a_prediction_that_cannot_be_made_takes_no_measurement_back() -> None:
    data = report_data("gain", natural=True)
    cell = headline_cell(data, "padded")
    assert cell is not None
    card = expectation("parts", Rule.PREDICTED, "As predicted.", "padded", Treatment.SPECULATIVE, ruler=False)
    unpredicted = (verdict(card, cell, Word.INVALID, "No verdict: nothing can be predicted."),)
    assert answer(report_data("gain", natural=True, verdicts=unpredicted)).outcome is Outcome.GAIN


def test_a_weak_baseline_gives_no_answer_whatever_the_claims() -> None:
    weak = World(dense_factor={"padded-1024-*": 6.0}, true_ratio={"padded-*-speculative-*": 3.0})
    found = answer(report_data(world=weak, natural=True, verdicts=()))
    assert found.outcome is Outcome.INVALID and "weak baseline: the dense arm took" in found.sentence


GAINS = (Word.REPRODUCED, Word.EXCEEDED, Word.SMALLER)


@pytest.mark.parametrize("ratio", [1.0, 1.12, 1.2, 1.35])
@pytest.mark.parametrize("noise", [0.01, 0.06, 0.1, 0.14])
def test_a_headline_and_a_verdict_on_the_same_cell_never_contradict_each_other(ratio: float, noise: float) -> None:
    """An expectation of a small gain, which lies inside the margin of a noisy machine: seen by both, or by neither."""
    data = report_data(world=World(noise=noise, true_ratio={"padded-*-speculative-*": ratio}), blocks=4)
    for value in (1.05, 1.1, 1.3):
        about = Conditions(pair="padded", treatment=Treatment.SPECULATIVE, keep=0.2)
        more = {"value": value, "ruler": False, "conditions": about}
        card = expectation("gain", Rule.AT_LEAST, "A gain.", "padded", Treatment.SPECULATIVE, **more)
        verdicts = build_verdicts(data.study, data.estimates, [card], Facts())
        (found,) = verdicts.verdicts
        said = answer(data.model_copy(update={"verdicts": verdicts}))
        if found.word in GAINS:
            assert said.outcome is Outcome.GAIN, (found.sentence, said.sentence)
        if said.outcome is Outcome.INCONCLUSIVE:
            assert found.word not in GAINS
            assert "run the study again on a quiet machine, or with more blocks" in said.sentence
            share = math.expm1(max(math.log(1.03), data.estimates.placebo_margin or 0))
            assert f"±{100 * share:.0f}\u00a0%" in said.sentence


def test_an_unsettled_headline_is_a_sentence_about_answers_too() -> None:
    sentence = answer(report_data("inconclusive", natural=True)).sentence
    assert "; SpecPrefill lost none of the 6 answers" in sentence
