"""Rotating each token by its own position, with the model's own rotary embedding."""

import math

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.rope_utils import initialize_rope

from specprefill_repro.errors import ReproError
from specprefill_repro.prefill.architectures import attention_modules
from specprefill_repro.prefill.chunked import new_cache
from specprefill_repro.prefill.loading import load_model
from specprefill_repro.prefill.positions import (
    PositionedModel,
    PositionedRotary,
    check_vector_offsets,
    rotary_is_original,
)
from specprefill_repro.prefill.windows import Positions
from tiny_model import write_tiny_model

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
ROTARIES = {
    "plain": lambda: nn.RoPE(16),
    "traditional": lambda: nn.RoPE(16, traditional=True),
    "partial": lambda: nn.RoPE(8),
    "scaled": lambda: nn.RoPE(16, scale=0.25, base=1e6),
    "llama3": lambda: initialize_rope(16, 5e5, False, LLAMA3, 131072),
    "yarn": lambda: initialize_rope(
        16, 1e4, False, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16384
    ),
}


@pytest.mark.parametrize("name", ROTARIES)
def test_any_rotary_embedding_rotates_by_a_list_of_positions_as_by_single_ones(name):
    rotary = ROTARIES[name]()
    values = [0, 3, 4, 50, 51, 999, 7000]
    x = mx.random.normal((1, 3, len(values), 16), key=mx.random.key(1))
    wrapped = PositionedRotary(rotary=rotary, positions=Positions())
    wrapped.positions.set(values)
    expected = mx.concatenate([rotary(x[:, :, i : i + 1], offset=value) for i, value in enumerate(values)], axis=2)
    np.testing.assert_array_equal(np.array(wrapped(x, offset=12345)), np.array(expected))
    assert [array.tolist() for array in wrapped.seen] == [values]


def test_plain_rotary_equals_the_textbook_formula():
    values = [0, 2, 9, 400]
    x = np.random.default_rng(0).normal(size=(1, 2, 4, 16))
    angles = np.outer(values, 10000.0 ** (-np.arange(0, 16, 2) / 16))
    first, second = x[..., :8], x[..., 8:]
    expected = np.concatenate(
        [first * np.cos(angles) - second * np.sin(angles), first * np.sin(angles) + second * np.cos(angles)], axis=-1
    )
    wrapped = PositionedRotary(rotary=nn.RoPE(16), positions=Positions())
    wrapped.positions.set(values)
    np.testing.assert_allclose(np.array(wrapped(mx.array(x.astype(np.float32)))), expected, atol=2e-5)


def test_half_precision_stays_half_precision():
    wrapped = PositionedRotary(rotary=nn.RoPE(16), positions=Positions())
    wrapped.positions.set([1, 5])
    for dtype in (mx.bfloat16, mx.float16):
        assert wrapped(mx.ones((1, 2, 2, 16), dtype=dtype)).dtype == dtype


def test_forgotten_positions_are_an_error_and_not_position_zero():
    wrapped = PositionedRotary(rotary=nn.RoPE(16), positions=Positions())
    with pytest.raises(RuntimeError, match="no positions"):
        wrapped(mx.ones((1, 2, 3, 16)))
    wrapped.positions.set([1, 2])
    with pytest.raises(RuntimeError, match="no positions"):
        wrapped(mx.ones((1, 2, 3, 16)))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    model, _ = load_model(write_tiny_model(tmp_path_factory.mktemp("tiny")))
    return model


def test_the_model_is_changed_only_while_it_reads_also_when_reading_fails(tiny, monkeypatch):
    originals = [module.rope for module in attention_modules(tiny)]
    model = PositionedModel(tiny, 100)
    model.positions.set([7])
    seen = []
    original = type(tiny.layers[1]).__call__

    def fails(self, *args, **kwargs):
        seen.append(rotary_is_original(tiny))
        if self is tiny.layers[1]:
            raise KeyError
        return original(self, *args, **kwargs)

    monkeypatch.setattr(type(tiny.layers[1]), "__call__", fails)
    with pytest.raises(KeyError):
        model(mx.array([[1]]), cache=new_cache(model))
    assert seen == [False, False]
    assert rotary_is_original(tiny)
    assert all(module.rope is original for module, original in zip(attention_modules(tiny), originals, strict=True))


def test_this_device_rotates_vectors_of_positions_exactly(tiny):
    assert check_vector_offsets(tiny) == 0.0


def test_a_device_that_reads_only_the_first_offset_is_refused(tiny, monkeypatch):
    original = nn.RoPE.__call__
    monkeypatch.setattr(
        nn.RoPE,
        "__call__",
        lambda self, x, offset=0: original(self, x, offset[0] if isinstance(offset, mx.array) else offset),
    )
    with pytest.raises(ReproError, match="rotates a vector of positions wrongly"):
        check_vector_offsets(tiny)


def test_a_device_that_computes_no_number_is_refused(tiny, monkeypatch):
    original = nn.RoPE.__call__
    monkeypatch.setattr(nn.RoPE, "__call__", lambda self, x, offset=0: original(self, x, offset) * math.nan)
    with pytest.raises(ReproError, match=r"rotates a vector of positions wrongly \(difference nan\)"):
        check_vector_offsets(tiny)


def test_an_unknown_model_type_is_refused_with_what_to_do(tiny, monkeypatch):
    monkeypatch.setattr(tiny, "model_type", "mystery")
    with pytest.raises(ReproError, match="'mystery' is not supported") as error:
        attention_modules(tiny)
    assert "architectures.py" in error.value.next
    assert "docs/adding-a-model.md" in error.value.next
    with pytest.raises(ReproError, match="'mystery' is not supported"):
        PositionedModel(tiny, 100)
