"""Dense prefill's own words, read after a sparse prefill: how likely each is."""

import mlx.core as mx
import numpy as np
import pytest

from specprefill_repro.prefill import dense
from specprefill_repro.prefill.arms import Models, Request
from specprefill_repro.prefill.chunked import most_likely
from specprefill_repro.prefill.continuation import log_probabilities_after
from specprefill_repro.study.plan import Arm, ArmKind
from specprefill_repro.study.schema import Selection
from specprefill_repro.trials.job import Forced, Job
from specprefill_repro.trials.trial import run_worker
from tiny_architectures import build, prompt, write

WORDS = 6


def request(ids, keep=0.3):
    arm = Arm(kind=ArmKind.RANDOM, keep=keep, selection=Selection(head=8, tail=8, chunk=16))
    return Request(ids=tuple(ids), arm=arm, step=32, seed="test")


def own_words(model, ids):
    asked = Request(ids=tuple(ids), arm=Arm(kind=ArmKind.DENSE), step=32, seed="test")
    with dense.prefill(Models(target=model, draft=None), asked) as prefilled:
        tokens = [prefilled.first_token]
        while len(tokens) < WORDS:
            tokens.append(most_likely(prefilled.decode(tokens[-1])))
    return tokens


@pytest.mark.parametrize("case", ["llama", "gemma3_text", "qwen3_5"])
def test_with_every_token_kept_it_is_what_one_dense_pass_over_prompt_and_words_says(case):
    model, ids = build(case), prompt()[0][:100]
    tokens = own_words(model, ids)
    logits = model(mx.array([[*ids, *tokens[:-1]]]))[0, len(ids) - 1 :].astype(mx.float32)
    rows = np.array(logits, dtype=np.float64)
    rows -= np.log(np.exp(rows - rows.max(-1, keepdims=True)).sum(-1, keepdims=True)) + rows.max(-1, keepdims=True)
    expected = rows[np.arange(WORDS), tokens]
    found = log_probabilities_after(Models(target=model, draft=None), request(ids), range(len(ids)), tokens)
    np.testing.assert_allclose(found, expected, atol=2e-4)


def test_words_that_the_model_would_not_say_are_read_all_the_same():
    model, ids = build("llama"), prompt()[0][:100]
    models = Models(target=model, draft=None)
    kept = [*range(20), *range(60, 100)]
    said = log_probabilities_after(models, request(ids), kept, [5, 9, 5])
    other = log_probabilities_after(models, request(ids), kept, [5, 11, 5])
    assert said[0] == other[0] and said[1] != other[1] and said[2] != other[2]
    assert all(value < 0 for value in said)


def test_the_second_trial_of_a_pair_tells_the_same_whichever_arm_it_is(tmp_path):
    folder, ids = write("llama", tmp_path / "model"), prompt()[0]
    treated = request(ids[:100]).arm

    def trial(arm, forced=None):
        return run_worker(
            Job(
                target_folder=str(folder),
                draft_folder=None,
                arm=arm,
                ids=tuple(ids[:100]),
                needle_tokens=((0, 1),),
                warmup_ids=tuple(ids[100:140]),
                step=32,
                answer_tokens=WORDS,
                seed="test",
                logits_file=str(tmp_path / "logits"),
                log_probabilities=arm.kind is ArmKind.DENSE,
                forced=forced,
            )
        )

    plain = trial(Arm(kind=ArmKind.DENSE))
    assert len(plain.answer_log_probabilities) == len(plain.tokens) and not plain.forced_log_probabilities
    second = trial(treated, Forced(arm=treated, tokens=plain.tokens, kept=None))
    again = trial(Arm(kind=ArmKind.DENSE), Forced(arm=treated, tokens=None, kept=second.evidence.kept_ranges))
    assert again.forced_log_probabilities == pytest.approx(second.forced_log_probabilities, abs=1e-5)
    assert len(second.forced_log_probabilities) == len(plain.tokens)
    assert sum(second.forced_log_probabilities) < sum(plain.answer_log_probabilities)
