"""Every kind of wrong or missing evidence is found, and sound evidence is not complained about."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specprefill_repro.estimates.evidence import evidence_problems, pair_problems
from specprefill_repro.files import content_id
from specprefill_repro.gate.pitfalls import PITFALLS
from specprefill_repro.study.engines import VllmMlxEngine
from specprefill_repro.study.schema import NeedleKind, Prompts
from specprefill_repro.trials.schema import TrialRecord
from synthetic_records import Fault, World, demo_study, synthetic_study_records


def made(*faults: Fault) -> list[TrialRecord]:
    return synthetic_study_records(demo_study(blocks=1), 1, World(faults=faults)).records


SOUND = made()


def sparse_trial(**evidence: Any) -> TrialRecord:
    record = next(r for r in SOUND if r.cell == "padded-512-speculative-keep0.2" and r.treated)
    return record.model_copy(update={"evidence": record.evidence.model_copy(update=evidence)})


def test_sound_trials_have_no_problems() -> None:
    assert [evidence_problems(record) for record in made() if evidence_problems(record)] == []


@pytest.mark.parametrize(
    "kind, words",
    [
        ("fallback", "SpecPrefill did not run: the outcome is 'fallback: scoring raised AttributeError'"),
        ("cache", "64 tokens were in the KV cache"),
        ("suspend", "slept for 3.0 seconds"),
        ("swap", "4,096 bytes were swapped out"),
        ("paging", "at least 67,108,865 bytes were read from disk while the clock ran"),
        ("heat", "under thermal pressure (heavy)"),
        ("positions", "saw other positions"),
        ("phases", "the phases add up to"),
        ("not-restored", "only 29 of 30 patched modules were restored"),
        ("last-token", "the last prompt token was not kept"),
    ],
)
def test_a_fault_is_named(kind: str, words: str) -> None:
    for record in made(Fault(kind, "padded-*-speculative-*")):
        hit = record.treated and record.cell.startswith("padded") and "speculative" in record.cell
        assert any(words in problem for problem in evidence_problems(record)) == hit


@pytest.mark.parametrize(
    "evidence, words",
    [
        ({"rotary_positions_sha256": None}, "were not recorded"),
        ({"draft_cache_tokens_before": 64}, "64 tokens were in the draft's KV cache"),
        ({"rotary_modules": 0, "rotary_modules_restored": 0}, "no rotary embedding was watched"),
        ({"rotary_modules_expected": 31}, "30 of 31 rotary embeddings were watched"),
        ({"kept_sha256": content_id([1])}, "hash of the kept positions"),
        ({"tokens_kept": 1}, "positions listed"),
        ({"cache_tokens_after": 3}, "3 cache entries"),
        ({"tokens_scored": 100}, "the draft read 100 of 512"),
        ({"look_ahead_tokens": tuple(range(9))}, "9 look-ahead tokens"),
        ({"kept_ranges": ((32, 64), (0, 32))}, "not an ascending list"),
        ({"kept_ranges": ((0, 513),)}, "not an ascending list"),
        ({"kept_ranges": ()}, "the last prompt token was not kept"),
    ],
)
def test_inconsistent_evidence_is_named(evidence: dict[str, Any], words: str) -> None:
    problems = evidence_problems(sparse_trial(**evidence))
    assert any(words in problem for problem in problems), problems


SEEN_IN_A_TRIAL: dict[int, dict[str, Any]] = {
    12: {"kept_sha256": content_id([1])},
    15: {"rotary_positions_sha256": content_id([1])},
    19: {"kept_ranges": ()},
    20: {"rotary_modules_restored": 29},
    22: {"cache_tokens_after": 3},
    31: {"cache_tokens_before": 64},
}


@pytest.mark.parametrize(
    "evidence, words",
    [
        ({"lines": ()}, "no line of the server's log"),
        ({"keep_logged": 0.3}, "keep rate was 0.3, 0.2 was asked for"),
        ({"tokens_scored": 100}, "the draft read 100 of 512"),
        ({"prompt_tokens": 513}, "counted 513 prompt tokens"),
        ({"cached_tokens": 8}, "8 prompt tokens came from a cache"),
        ({"draft_cached_tokens": 8}, "8 prompt tokens came from a cache"),
    ],
)
def test_a_server_s_record_that_calls_itself_sparse_is_held_against_what_it_has_of_the_log(evidence, words) -> None:
    engines = {"paper": VllmMlxEngine(kind="vllm-mlx", version="0.2.9")}
    cells = (demo_study().comparisons[0].model_copy(update={"engine": "paper"}),)
    prompts = Prompts(kinds=(NeedleKind.NUMBER,), begin_reply=False)
    study = demo_study(blocks=1, engines=engines, comparisons=cells, prompts=prompts)
    records = synthetic_study_records(study, 1, World()).records
    record = next(r for r in records if r.treated and r.requested.keep == 0.2 and r.prompt.tokens == 512)
    assert record.outcome == "sparse" and evidence_problems(record) == []
    changed = record.model_copy(update={"evidence": record.evidence.model_copy(update=evidence)})
    assert any(words in problem for problem in evidence_problems(changed))


def test_every_pitfall_that_is_said_to_be_looked_for_in_every_trial_is() -> None:
    for evidence in SEEN_IN_A_TRIAL.values():
        assert evidence_problems(sparse_trial(**evidence)) != []
    # A fallback (1) and types (41) are tested beside this; the share that was read (2) is shown, and not refused.
    assert {number for number, pitfall in PITFALLS.items() if pitfall.trial} == {*SEEN_IN_A_TRIAL, 1, 2, 41}


def test_a_model_without_rotary_embeddings_is_judged_by_its_caches() -> None:
    without: dict[str, Any] = {"rotary_modules": 0, "rotary_modules_restored": 0, "rotary_positions_sha256": None}
    assert evidence_problems(sparse_trial(**without, rotary_modules_expected=0)) == []
    assert evidence_problems(sparse_trial(**without, rotary_modules_expected=0, cache_tokens_after=3)) != []


def test_a_dense_arm_that_skipped_tokens_is_named() -> None:
    sparse = sparse_trial()
    dense = next(record for record in made() if not record.treated)
    wrong = dense.model_copy(update={"evidence": sparse.evidence})
    assert any("the dense arm was not dense" in problem for problem in evidence_problems(wrong))


def test_keeping_the_whole_prompt_may_be_called_dense() -> None:
    record = next(r for r in made(Fault("keeps-all")) if r.cell == "padded-512-speculative-keep0.2" and r.treated)
    assert evidence_problems(record) == []
    assert evidence_problems(record.model_copy(update={"outcome": "dense"})) == []


@settings(deadline=None)
@given(st.floats(0.1, 1e4))
def test_whether_a_trial_counts_does_not_depend_on_how_long_it_took(factor: float) -> None:
    """Only that the phases add up to the total is looked at."""
    record = sparse_trial(cache_tokens_before=1)
    phases = record.phases.model_copy(update={k: factor * v for k, v in record.phases.model_dump().items()})
    slower = record.model_copy(update={"seconds": factor * record.seconds, "phases": phases})
    assert evidence_problems(slower) == evidence_problems(record)


@pytest.mark.parametrize("kind, words", [("prompt", "different prompts"), ("float32", "key_dtype is float32")])
def test_arms_that_differ_are_named(kind: str, words: str) -> None:
    first = [r for r in made(Fault(kind)) if r.cell == "padded-512-speculative-keep0.2"][:2]
    dense, treated = sorted(first, key=lambda record: record.treated)
    assert any(words in problem for problem in pair_problems(dense, treated))
    sound = [r for r in made() if r.cell == "padded-512-speculative-keep0.2"][:2]
    assert pair_problems(*sorted(sound, key=lambda record: record.treated)) == []
    assert pair_problems(dense, dense) == ["it does not hold one trial of each arm"]


@pytest.mark.parametrize("name", ["blas", "mlx", "device", "omlx engine type"])
def test_arms_that_ran_on_other_software_are_named(name: str) -> None:
    """A slow BLAS in one process alone would make any claim true."""
    pair = [r for r in made() if r.cell == "padded-512-speculative-keep0.2"][:2]
    dense, treated = (
        record.model_copy(update={"environment": {**record.environment, name: said, "server options": said}})
        for record, said in zip(sorted(pair, key=lambda record: record.treated), ("stock", "fast"), strict=True)
    )
    assert pair_problems(dense, treated) == [f"{name} was stock in the dense arm and fast in the treated one"]


def test_other_weights_or_another_engine_are_named() -> None:
    pair = [r for r in made() if r.cell == "padded-512-speculative-keep0.2"][:2]
    dense, treated = sorted(pair, key=lambda record: record.treated)
    assert "weights" in pair_problems(dense, treated.model_copy(update={"target_weights_sha256": "0" * 64}))[0]
    assert "engines" in pair_problems(dense, treated.model_copy(update={"engine": "omlx"}))[0]
