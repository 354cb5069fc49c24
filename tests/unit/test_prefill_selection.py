"""Which tokens are kept: laws that hold for every prompt, keep rate and rule."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specprefill_repro.estimates.cost_model import kept_tokens
from specprefill_repro.prefill.selection import (
    best_chunks,
    budget,
    divide,
    outer_chunks,
    random_chunks,
    spaced_chunks,
    with_window_tail,
)
from specprefill_repro.study.presets import PRESETS
from specprefill_repro.study.schema import Selection

rules = st.builds(
    Selection,
    chunk=st.integers(1, 64),
    head=st.integers(0, 64),
    tail=st.integers(1, 64),
    tail_in_budget=st.booleans(),
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
    # In whole chunks, of which the last may be short.
    tail = rule.tail - rule.chunk + 1 if rule.tail_in_budget else rule.tail
    assert set(range(max(0, tokens - tail), tokens)) <= set(kept)


@given(scores, rules)
def test_keep_one_keeps_everything(scores, rule):
    assert best_chunks(scores, 1.0, rule) == list(range(len(scores)))


@given(scores, keeps, rules)
def test_every_control_keeps_as_many_chunks_as_scoring_does(scores, keep, rule):
    full = all(len(chunk) == rule.chunk for chunk in divide(len(scores), keep, rule).chunks)
    best = best_chunks(scores, keep, rule)
    for chosen in controls(len(scores), keep, rule):
        assert abs(len(best) - len(chosen)) < rule.chunk
        if full:
            assert len(best) == len(chosen)
        assert chosen == sorted(set(chosen)) and chosen[-1] == len(scores) - 1


def controls(tokens, keep, rule):
    return (
        random_chunks(tokens, keep, rule, "seed"),
        outer_chunks(tokens, keep, rule),
        spaced_chunks(tokens, keep, rule),
    )


@given(scores, keeps, rules)
def test_no_dropped_chunk_scores_higher_than_a_kept_one(scores, keep, rule):
    kept = set(best_chunks(scores, keep, rule))
    division = divide(len(scores), keep, rule)
    means = {chunk.start: math.fsum(scores[i] for i in chunk) / len(chunk) for chunk in division.chunks}
    inside = [mean for start, mean in means.items() if start in kept]
    outside = [mean for start, mean in means.items() if start not in kept]
    assert not inside or not outside or min(inside) >= max(outside)
    assert len(inside) == division.chosen


def test_budget_is_not_raised_by_the_last_bit_of_a_product():
    # 10 * 0.3 is 3.0000000000000004 in some orders of arithmetic; ceil must not make 4 of it.
    assert [budget(10, keep) for keep in (0.1, 0.2, 0.3, 0.7, 1.0)] == [1, 2, 3, 7, 10]
    assert budget(9, 0.2) == 2
    assert (budget(9, 1e-12), budget(0, 0.2)) == (1, 0)


def test_random_selection_repeats_with_its_seed_and_changes_with_it():
    rule = Selection()
    assert random_chunks(2000, 0.2, rule, "a") == random_chunks(2000, 0.2, rule, "a")
    assert random_chunks(2000, 0.2, rule, "a") != random_chunks(2000, 0.2, rule, "b")


def test_a_needle_chunk_with_the_highest_scores_is_kept():
    scores = [0.001] * 1000
    scores[500:520] = [0.9] * 20
    kept = best_chunks(scores, 0.1, Selection())
    assert set(range(500, 520)) <= set(kept)


def ports_choice(scores, keep, tail):
    """What the ports keep, in NumPy: whole chunks of 32 by mean score, the last ones of the tail charged first."""
    chunks = [np.arange(start, min(start + 32, len(scores))) for start in range(0, len(scores), 32)]
    wanted = max(1, int(np.ceil(np.round(len(chunks) * keep, 9))))
    forced = min(len(chunks), -(-tail // 32))
    means = np.array([scores[chunk].mean() for chunk in chunks[: len(chunks) - forced]])
    chosen = np.argsort(-means, kind="stable")[: max(0, wanted - forced)]
    return np.sort(np.concatenate([chunks[i] for i in [*chosen, *range(len(chunks) - forced, len(chunks))]])).tolist()


@pytest.mark.parametrize(("preset", "tail"), [("liu2025", 0), ("green2026", 0), ("omlx", 512)])
@pytest.mark.parametrize("tokens", [20, 300, 512, 1000, 4001])
@pytest.mark.parametrize("keep", [0.1, 0.2, 0.3])
def test_presets_keep_what_their_sources_keep(preset, tail, tokens, keep):
    scores = np.random.default_rng(tokens).random(tokens)
    assert best_chunks(scores.tolist(), keep, Selection(preset=preset)) == ports_choice(scores, keep, tail)


def test_a_rule_without_a_tail_may_drop_the_last_prompt_token():
    scores = [1.0] * 64 + [0.0] * 936
    assert best_chunks(scores, 0.05, Selection(preset="green2026"))[-1] == 63


def test_a_tail_larger_than_the_budget_is_kept_all_the_same_and_nothing_else():
    kept = best_chunks([1.0] * 1000, 0.2, Selection(preset="omlx"))
    # 32 chunks of which 7 make the budget; the tail takes 16.
    assert kept == list(range(512, 1000))


def test_head_tail_keeps_both_ends_and_uniform_leaves_no_large_gap():
    rule = Selection(head=0, tail=1, chunk=10)
    outer, spaced = outer_chunks(1001, 0.2, rule), spaced_chunks(1001, 0.2, rule)
    assert outer == [*range(100), *range(900, 1001)]
    starts = [position for position in spaced if position - 1 not in spaced][:-1]
    assert len(starts) == 20 and {after - before for before, after in itertools.pairwise(starts)} == {50}


@given(st.integers(1, 400), keeps, rules)
def test_the_cost_model_counts_what_is_kept(tokens, keep, rule):
    found = len(spaced_chunks(tokens, keep, rule))
    assert found <= kept_tokens(tokens, keep, rule) < found + rule.chunk or tokens < rule.head


@pytest.mark.parametrize(
    ("wanted", "tokens", "window", "first"),
    [
        ("no", 100, 40, None),
        ("long-prompts", 100, 40, 60),
        ("long-prompts", 40, 40, None),
        ("always", 40, 40, 0),
        ("always", 100, None, None),
    ],
)
def test_a_target_reads_its_last_window_where_the_rule_says_so(wanted, tokens, window, first):
    kept = with_window_tail([3, 30], tokens, window, Selection(window_tail=wanted))
    assert kept == sorted({3, 30, *([] if first is None else range(first, tokens))})


def test_every_preset_has_a_source_and_only_ours_is_free_of_chance_and_keeps_the_last_token():
    for name, preset in PRESETS.items():
        rule = Selection(preset=name)
        assert preset.sources and 0 < preset.keep <= 1
        assert not rule.changed and rule.label == name
        assert (rule.temperature > 0) == (name in ("green2026", "omlx"))
    assert Selection(preset="ours").tail > 0
