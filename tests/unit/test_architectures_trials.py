"""Whole trials, each in its clean process, with targets and drafts of different architectures."""

import pytest

from specprefill_repro.study.plan import Arm, ArmKind
from specprefill_repro.study.schema import Selection
from specprefill_repro.trials.job import Job
from specprefill_repro.trials.trial import run_worker
from tiny_architectures import prompt, write


@pytest.mark.parametrize(
    ("target", "outer", "draft", "rotaries"),
    [
        ("nemotron_h", None, "gemma4_text", 0),
        ("gemma4_text", "gemma4", "qwen3_5", 6),
        ("gpt_oss", None, "nemotron_h", 4),
    ],
)
def test_a_trial_of_any_pair_is_sparse_by_its_evidence(target, outer, draft, rotaries, tmp_path):
    ids = prompt()[0]
    arm = Arm(kind=ArmKind.SPECULATIVE, keep=0.2, selection=Selection(head=8, tail=8, chunk=16, look_ahead=3))
    measured = run_worker(
        Job(
            target_folder=str(write(target, tmp_path / "target", outer=outer)),
            draft_folder=str(write(draft, tmp_path / "draft")),
            arm=arm,
            ids=tuple(ids[:120]),
            needle_tokens=((0, 1),),
            warmup_ids=tuple(ids[120:180]),
            step=32,
            answer_tokens=5,
            seed="test",
            logits_file=str(tmp_path / "logits"),
        )
    )
    evidence = measured.evidence
    assert measured.outcome == "sparse"
    assert evidence.tokens_scored == 120 and evidence.cache_tokens_after == evidence.tokens_kept < 60
    assert evidence.rotary_modules == evidence.rotary_modules_expected == evidence.rotary_modules_restored == rotaries
    assert evidence.key_dtype == evidence.logits_dtype == "float32"
