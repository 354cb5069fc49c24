"""Sampled look-ahead: the same distribution as mlx_lm's sampler, drawn from a seed; and which queries count."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.sample_utils import apply_top_p

from specprefill_repro.prefill.chunked import most_likely, new_cache
from specprefill_repro.prefill.look_ahead import look_ahead
from specprefill_repro.prefill.sampling import chooser, restricted
from tiny_architectures import build, prompt


def logits(seed, size=300):
    return mx.array(np.random.default_rng(seed).normal(0, 3, size).astype(np.float32))


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("seed", range(4))
def test_the_nucleus_is_that_of_mlx_lm(seed, top_p):
    logs = logits(seed) - mx.logsumexp(logits(seed))
    theirs = np.array(apply_top_p(logs[None], top_p)[0])
    ours = np.array(restricted(logits(seed), top_p))
    assert np.array_equal(np.isfinite(ours), np.isfinite(theirs))
    np.testing.assert_allclose(ours[np.isfinite(ours)], theirs[np.isfinite(theirs)], rtol=1e-5)
    probabilities = np.exp(np.array(logs, dtype=float))
    assert probabilities[np.isfinite(ours)].sum() >= top_p - 1e-5


def test_draws_follow_the_distribution_and_their_seed():
    values = mx.log(mx.array([0.5, 0.3, 0.15, 0.05]))
    draw, again, other = (chooser(0.6, 0.9, seed) for seed in ("a", "a", "b"))
    drawn = [draw(values) for _ in range(2000)]
    assert drawn == [again(values) for _ in range(2000)]
    assert drawn != [other(values) for _ in range(2000)]
    wanted = np.array([0.5, 0.3, 0.15]) ** (1 / 0.6)  # The fourth is outside the nucleus.
    found = np.bincount(drawn, minlength=4) / 2000
    assert found[3] == 0
    np.testing.assert_allclose(found[:3], wanted / wanted.sum(), atol=0.04)


def test_drawing_leaves_the_global_generator_alone():
    mx.random.seed(5)
    untouched = mx.random.uniform().item()
    mx.random.seed(5)
    chooser(0.6, 0.95, "seed")(logits(1))
    assert mx.random.uniform().item() == untouched


def test_without_temperature_the_most_likely_token_is_taken():
    assert chooser(0.0, 0.5, "seed") is most_likely


@pytest.fixture(scope="module")
def draft():
    return build("llama"), prompt()[0][:60]


def ahead(draft, steps, ends=frozenset(), **options):
    model, ids = draft
    return look_ahead(model, ids, new_cache(model), 32, steps, ends, **options)


def test_without_the_prompt_query_the_same_later_queries_count(draft):
    with_it, decoded = ahead(draft, 5)
    without, also = ahead(draft, 4, prompt_query=False)
    assert also == decoded and len(decoded) == 4
    for one, other in zip(with_it, without, strict=True):
        assert other.queries.shape[2] == 4 and other.keys.shape == one.keys.shape
        assert mx.array_equal(one.queries[:, :, 1:], other.queries)


def test_an_end_token_stops_the_look_ahead_but_never_before_the_first_query(draft):
    _, decoded = ahead(draft, 5)
    ends = frozenset(decoded[:1])
    assert [layer.queries.shape[2] for layer in ahead(draft, 5, ends)[0]][:1] == [1]
    layers, read = ahead(draft, 5, ends, prompt_query=False)
    assert layers[0].queries.shape[2] >= 1 and len(read) >= 1
