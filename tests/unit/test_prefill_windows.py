"""Windows by original position: the cache against brute force, and which layers of a draft score."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specprefill_repro.errors import ReproError
from specprefill_repro.prefill.architectures import structure
from specprefill_repro.prefill.chunked import new_cache
from specprefill_repro.prefill.look_ahead import look_ahead, scoring_layers
from specprefill_repro.prefill.windows import Positions, WindowCache
from tiny_architectures import build, prompt

gaps = st.lists(st.integers(1, 40), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(gaps=gaps, step=st.integers(1, 20), window=st.integers(1, 60), block=st.integers(1, 9))
def test_a_query_sees_exactly_the_kept_tokens_within_its_window(gaps, step, window, block):
    kept = np.cumsum(gaps).tolist()
    positions = Positions()
    cache = WindowCache(window, positions)
    cache.block = block
    for start in range(0, len(kept), step):
        now = kept[start : start + step]
        positions.set(now)
        mask = cache.make_mask(len(now), window_size=window)
        keys, values = cache.update_and_fetch(column(now), column([-position for position in now]))
        held = np.array(keys)[0, 0, :, 0].astype(int).tolist()
        assert (-np.array(values)[0, 0, :, 0]).astype(int).tolist() == held
        seen = visible(mask, len(now), len(held))
        for row, query in zip(seen, now, strict=True):
            found = [position for position, shown in zip(held, row, strict=True) if shown]
            assert found == [position for position in kept if query - window < position <= query]
    assert cache.offset == len(kept)


def column(values):
    return mx.array(values, dtype=mx.float32).reshape(1, 1, -1, 1)


def visible(mask, queries, entries):
    if mask is None:
        assert queries == 1
        return np.ones((1, entries), dtype=bool)
    if isinstance(mask, str):
        assert mask == "causal"
        return np.tri(queries, entries, entries - queries, dtype=bool)
    return np.array(mask)


def test_the_cache_stays_as_small_as_window_and_step_allow():
    positions = Positions()
    cache = WindowCache(64, positions)
    for start in range(0, 6400, 32):
        positions.set(list(range(start, start + 32)))
        cache.update_and_fetch(mx.zeros((1, 1, 32, 4)), mx.zeros((1, 1, 32, 4)))
    for position in range(6400, 8000):
        positions.set([position])
        cache.update_and_fetch(mx.zeros((1, 1, 1, 4)), mx.zeros((1, 1, 1, 4)))
    assert cache.offset == 8000
    assert cache.keys.shape[2] <= 64 + 2 * cache.block


def test_a_window_other_than_the_one_it_was_made_for_is_an_error():
    positions = Positions()
    positions.set([3])
    with pytest.raises(RuntimeError, match="asked for a window of 32"):
        WindowCache(64, positions).make_mask(1, window_size=32)


@pytest.mark.parametrize(
    ("case", "full", "all_layers"),
    [
        ("gemma3_text", [1, 3], [0, 1, 2, 3]),
        ("gemma4_text", [1, 3, 5], [0, 1, 2, 3, 4, 5]),
        ("gpt_oss", [1, 3], [0, 1, 2, 3]),
        ("mistral-windows", [1], [0, 1, 2]),
        ("nemotron_h", [0, 1], [0, 1]),
        ("qwen3_5", [0], [0]),
    ],
)
def test_window_layers_of_a_draft_score_only_while_their_window_covers_prompt_and_look_ahead(case, full, all_layers):
    draft, ids = build(case), prompt()[0]
    found = structure(draft)
    # The window is 40: 37 tokens and 3 more passes just fit.
    for tokens, expected in ((37, all_layers), (38, full), (200, full)):
        assert scoring_layers(found, tokens + 3) == expected
        cache = new_cache(draft)
        layers, decoded = look_ahead(draft, ids[:tokens], cache, 16, 4, frozenset())
        assert [layer.keys.shape[2] for layer in layers] == [tokens] * len(expected)
        assert [layer.queries.shape[2] for layer in layers] == [4] * len(expected)
        assert len(decoded) == 3


def test_a_draft_with_nothing_but_short_windows_is_refused(monkeypatch):
    draft, ids = build("gemma3_text"), prompt()[0]
    found = structure(draft)
    only_windows = tuple(layer for layer in found.attention if layer.window is not None)
    monkeypatch.setattr(
        "specprefill_repro.prefill.look_ahead.structure",
        lambda model: type(found)(found.architecture, found.text, only_windows, (), found.caches),
    )
    with pytest.raises(ReproError, match="No layer of the draft sees a whole prompt of 303 tokens"):
        look_ahead(draft, ids, new_cache(draft), 64, 4, frozenset())
