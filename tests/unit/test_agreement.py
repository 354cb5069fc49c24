"""A server that keeps no positions is found from its answers alone; one that keeps other tokens is not accused."""

import hashlib

import pytest

from specprefill_repro.estimates.agreement import agreements, suspicions
from specprefill_repro.study.plan import ArmKind
from specprefill_repro.trials.schema import ServerEvidence, TrialRecord
from synthetic_records import demo_study, synthetic_study_records

PROMPTS = 6


@pytest.fixture(scope="module")
def template() -> TrialRecord:
    return synthetic_study_records(demo_study(blocks=1), seed=1).records[0]


@pytest.fixture
def trials(template):
    """Dense and speculative trials of our engine and of a server, with these answers to each of six prompts."""

    def make(
        ours: str, ours_sparse: str, served: str, served_sparse: str, outcome: str = "sparse"
    ) -> list[TrialRecord]:
        found = []
        for number in range(PROMPTS):
            identity = hashlib.sha256(str(number).encode()).hexdigest()
            for server, kind, answer in (
                (False, ArmKind.DENSE, ours),
                (False, ArmKind.SPECULATIVE, ours_sparse),
                (True, ArmKind.DENSE, served),
                (True, ArmKind.SPECULATIVE, served_sparse),
            ):
                text = answer.format(number=number)
                changes = {
                    "cell": "cell-on-server" if server else "cell",
                    "requested": template.requested.model_copy(update={"kind": kind}),
                    "outcome": "dense" if kind is ArmKind.DENSE else outcome if server else "sparse",
                    "prompt": template.prompt.model_copy(update={"sha256": identity}),
                    "answer_text": text,
                }
                if server:
                    changes["evidence"] = ServerEvidence.model_construct(first_text=text[:3])
                found.append(template.model_copy(update=changes))
        return found

    return make


def test_a_server_that_answers_as_ours_agrees_in_both_arms(trials):
    dense, speculative = agreements(trials("{number} it is", "{number} it is", "{number} it", "{number} it is so"))
    assert (dense.arm, speculative.arm, dense.trials) == ("dense", "speculative", PROMPTS)
    assert dense.with_our_dense == speculative.with_our_speculative == speculative.first_text_of_our_dense == 1
    assert suspicions((dense, speculative)) == ()


def test_the_space_that_a_real_server_loses_is_no_other_answer(trials):
    found = agreements(trials("The room is {number}", "The room is {number}", "The room is", "Theroom is {number}."))
    assert found[1].with_our_dense == 1 and suspicions(found) == ()


def test_answers_that_break_only_in_the_server_s_speculative_arm_are_suspected(trials):
    found = agreements(trials("{number} it is", "{number} it is", "{number} it is", "of the and"))
    (said,) = suspicions(found)
    assert "may not keep the positions" in said and "cell-on-server" in said


def test_answers_that_break_on_our_engine_too_accuse_nobody(trials):
    found = agreements(trials("{number} it is", "of the and", "{number} it is", "of a to"))
    assert found[1].with_our_dense == 0 and suspicions(found) == ()


def test_a_dense_server_with_other_answers_is_suspected_of_other_weights(trials):
    (said,) = suspicions(agreements(trials("{number} it is", "{number} it is", "Hello", "Hello")))
    assert "other weights" in said


def test_trials_that_fell_back_are_not_taken_for_speculative_ones(trials):
    found = agreements(trials("{number}", "{number}", "{number}", "{number}", outcome="fallback: no line"))
    assert [each.arm for each in found] == ["dense"]


def test_without_trials_of_our_own_there_is_nothing_to_compare(trials):
    served = [record for record in trials("a", "a", "a", "a") if isinstance(record.evidence, ServerEvidence)]
    assert agreements(served) == ()
