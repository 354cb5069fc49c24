"""Which tokens are kept: laws that hold for every prompt, keep rate and rule."""

import math

from hypothesis import given
from hypothesis import strategies as st

from specprefill_repro.prefill.selection import best_chunks, budget, middle_chunks, random_chunks
from specprefill_repro.study.schema import Selection

rules = st.builds(
    Selection,
    chunk=st.integers(1, 64),
    head=st.integers(0, 64),
    tail=st.integers(1, 64),
)
keeps = st.floats(0.001, 1.0)
scores = st.lists(st.floats(0, 1), min_size=1, max_size=400)


@given(scores, keeps, rules)
def test_kept_positions_are_ascending_and_hold_head_tail_and_the_last_token(scores, keep, rule):
    kept = best_chunks(scores, keep, rule)
    tokens = len(scores)
    assert kept == sorted(set(kept))
    assert kept[-1] == tokens - 1
    assert set(range(min(rule.head, tokens))) <= set(kept)
    assert set(range(max(0, tokens - rule.tail), tokens)) <= set(kept)


@given(scores, rules)
def test_keep_one_keeps_everything(scores, rule):
    assert best_chunks(scores, 1.0, rule) == list(range(len(scores)))


@given(scores, keeps, rules)
def test_random_selection_keeps_as_many_chunks_as_scoring_does(scores, keep, rule):
    full = all(len(chunk) == rule.chunk for chunk in middle_chunks(len(scores), rule))
    best, chosen = best_chunks(scores, keep, rule), random_chunks(len(scores), keep, rule, "seed")
    assert abs(len(best) - len(chosen)) < rule.chunk
    if full:
        assert len(best) == len(chosen)


@given(scores, keeps, rules)
def test_no_dropped_chunk_scores_higher_than_a_kept_one(scores, keep, rule):
    kept = set(best_chunks(scores, keep, rule))
    means = {
        chunk.start: math.fsum(scores[i] for i in chunk) / len(chunk) for chunk in middle_chunks(len(scores), rule)
    }
    inside = [mean for start, mean in means.items() if start in kept]
    outside = [mean for start, mean in means.items() if start not in kept]
    assert not inside or not outside or min(inside) >= max(outside)
    assert len(inside) == budget(len(means), keep)


def test_budget_is_not_raised_by_the_last_bit_of_a_product():
    # 10 * 0.3 is 3.0000000000000004 in some orders of arithmetic; ceil must not make 4 of it.
    assert [budget(10, keep) for keep in (0.1, 0.2, 0.3, 0.7, 1.0)] == [1, 2, 3, 7, 10]
    assert budget(9, 0.2) == 2


def test_random_selection_repeats_with_its_seed_and_changes_with_it():
    rule = Selection()
    assert random_chunks(2000, 0.2, rule, "a") == random_chunks(2000, 0.2, rule, "a")
    assert random_chunks(2000, 0.2, rule, "a") != random_chunks(2000, 0.2, rule, "b")


def test_a_needle_chunk_with_the_highest_scores_is_kept():
    scores = [0.001] * 1000
    scores[500:520] = [0.9] * 20
    kept = best_chunks(scores, 0.1, Selection())
    assert set(range(500, 520)) <= set(kept)
