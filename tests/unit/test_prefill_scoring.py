"""Scores of prompt tokens against NumPy."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specprefill_repro.prefill import scoring
from specprefill_repro.prefill.look_ahead import Attention
from specprefill_repro.prefill.scoring import average_pool, token_scores


def layers(rng, count=3, heads=6, key_heads=2, queries=4, tokens=50, size=8, sinks=False):
    return [
        Attention(
            queries=mx.array(rng.normal(size=(1, heads, queries, size)).astype(np.float32)),
            keys=mx.array(rng.normal(size=(1, key_heads, tokens, size)).astype(np.float32)),
            scale=size**-0.5,
            sinks=mx.array(rng.normal(size=heads).astype(np.float32) + 1) if sinks else None,
        )
        for _ in range(count)
    ]


def numpy_scores(captured, pool):
    best = None
    for layer in captured:
        queries, keys = np.array(layer.queries)[0].astype(float), np.array(layer.keys)[0].astype(float)
        keys = np.repeat(keys, len(queries) // len(keys), axis=0)
        weights = np.exp(queries @ keys.swapaxes(1, 2) * layer.scale)
        total = weights.sum(-1, keepdims=True)
        if layer.sinks is not None:
            total = total + np.exp(np.array(layer.sinks, dtype=float))[:, None, None]
        weights /= total
        padded = np.pad(weights, ((0, 0), (0, 0), (pool // 2, pool // 2)))
        pooled = np.lib.stride_tricks.sliding_window_view(padded, pool, axis=-1).mean(-1)
        best = pooled.max(0) if best is None else np.maximum(best, pooled.max(0))
    return best.mean(0)


@pytest.mark.parametrize("pool", [1, 3, 13, 49])
@pytest.mark.parametrize("key_heads", [1, 2, 6])
@pytest.mark.parametrize("sinks", [False, True])
def test_scores_equal_numpy(pool, key_heads, sinks):
    captured = layers(np.random.default_rng(pool), key_heads=key_heads, sinks=sinks)
    ours = np.array(token_scores(captured, pool))
    np.testing.assert_allclose(ours, numpy_scores(captured, pool), rtol=2e-5, atol=1e-7)


def test_attention_of_a_query_sums_to_one_over_the_prompt():
    scores = token_scores(layers(np.random.default_rng(0), count=1, heads=1, key_heads=1), 1)
    assert float(scores.sum()) == pytest.approx(1, rel=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(1, 70),
    block=st.integers(1, 80),
    pool=st.sampled_from([1, 3, 7, 13]),
    queries=st.integers(1, 5),
    sinks=st.booleans(),
)
def test_scores_do_not_depend_on_the_size_of_a_block(tokens, block, pool, queries, sinks):
    captured = layers(np.random.default_rng(tokens), tokens=tokens, queries=queries, sinks=sinks)
    at_once = np.array(token_scores(captured, pool))
    np.testing.assert_allclose(np.array(token_scores(captured, pool, block=block)), at_once, rtol=1e-5, atol=1e-8)


def test_memory_does_not_grow_with_heads_and_queries_times_a_long_prompt():
    tokens, heads, queries = 150_000, 8, 4
    captured = layers(np.random.default_rng(0), count=2, heads=heads, queries=queries, tokens=tokens)
    mx.eval([layer.keys for layer in captured])

    def peak(block):
        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        scores = token_scores(captured, 13, block=block)
        assert scores.shape == (tokens,) and bool(mx.all(scores > 0))
        return mx.get_peak_memory() - before

    all_at_once = heads * queries * tokens * 4
    assert peak(4096) < all_at_once < peak(tokens)


@pytest.mark.parametrize(("heads", "queries"), [(8, 1), (8, 64), (64, 8)])
def test_memory_is_bounded_whatever_the_number_of_heads_and_queries(heads, queries, monkeypatch):
    monkeypatch.setattr(scoring, "BLOCK_WEIGHTS", 2**16)
    tokens = 6000
    captured = layers(np.random.default_rng(0), count=1, heads=heads, queries=queries, tokens=tokens)
    mx.eval(captured[0].queries, captured[0].keys)
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    token_scores(captured, 13)
    # A block with what pooling makes of it, and the running maximum: (queries, tokens), as parts and as a whole.
    assert mx.get_peak_memory() - before < 10 * 2**16 * 4 + 3 * queries * tokens * 4


def test_pooling_counts_what_lies_outside_the_prompt_as_zero():
    pooled = np.array(average_pool(mx.ones((1, 10)), 5))[0]
    np.testing.assert_allclose(pooled, [0.6, 0.8, 1, 1, 1, 1, 1, 1, 0.8, 0.6], rtol=1e-6)


def test_scores_are_float32_for_half_precision_models():
    captured = [
        Attention(layer.queries.astype(mx.bfloat16), layer.keys.astype(mx.bfloat16), layer.scale)
        for layer in layers(np.random.default_rng(1))
    ]
    assert token_scores(captured, 13).dtype == mx.float32
