"""The GGUF conversion: row order against a rotary embedding written out here, refusals, and dequantisation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.models.gguf import convert_gguf, half_split_rows
from tiny_gguf import tiny_gguf_parts, write_tiny_gguf

HEADS, DIM, HIDDEN = 3, 8, 5


def rotate(pairs: np.ndarray[Any, Any], position: int) -> np.ndarray[Any, Any]:
    """Rotate (DIM / 2, 2) pairs by position * theta_i."""
    angle = position * 100.0 ** (-np.arange(DIM // 2) / (DIM // 2))
    x, y = pairs.T
    return np.stack([x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)], 1)


def test_reordered_rows_give_the_same_attention_under_the_other_rotary_layout() -> None:
    """Interleaved rotation of the file's rows, half-split rotation of ours: the same scores, head by head."""
    random = np.random.default_rng(0)
    query, key = random.standard_normal((2, HEADS * DIM, HIDDEN))
    x, y = random.standard_normal((2, HIDDEN))
    theirs = [
        rotate((query @ x).reshape(HEADS, -1, 2)[head], 7) * rotate((key @ y).reshape(HEADS, -1, 2)[head], 3)
        for head in range(HEADS)
    ]
    halves_q = (half_split_rows(query, HEADS) @ x).reshape(HEADS, 2, -1)
    halves_k = (half_split_rows(key, HEADS) @ y).reshape(HEADS, 2, -1)
    ours = [rotate(halves_q[head].T, 7) * rotate(halves_k[head].T, 3) for head in range(HEADS)]
    np.testing.assert_allclose([part.sum() for part in ours], [part.sum() for part in theirs], rtol=1e-12)


def test_converted_model_computes_what_numpy_computes_from_the_file(tmp_path: Path) -> None:
    """One layer, one token: no attention pattern, so the forward pass is a few lines of NumPy on the file's arrays."""
    import mlx.core as mx
    from mlx_lm import load

    arrays, _ = tiny_gguf_parts()
    convert_gguf(write_tiny_gguf(tmp_path / "m.gguf"), tmp_path)
    model, tokenizer = load(str(tmp_path))
    token = tokenizer.encode("a")[0]

    def norm(x: np.ndarray[Any, Any], weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return x / np.sqrt((x * x).mean() + 1e-5) * weight

    layer = {name.removeprefix("blk.0.").removesuffix(".weight"): array for name, array in arrays.items()}
    x = layer["token_embd"][token].astype(np.float64)
    value = (layer["attn_v"] @ norm(x, layer["attn_norm"])).reshape(1, -1).repeat(2, 0).reshape(-1)  # 2 query heads
    x = x + layer["attn_output"] @ value
    y = norm(x, layer["ffn_norm"])
    gate = layer["ffn_gate"] @ y
    x = x + layer["ffn_down"] @ (gate / (1 + np.exp(-gate)) * (layer["ffn_up"] @ y))
    expected = layer["token_embd"] @ norm(x, layer["output_norm"])
    np.testing.assert_allclose(np.array(model(mx.array([[token]])))[0, 0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"general.architecture": "gemma3"}, "architecture 'gemma3'"),
        ({"tokenizer.ggml.pre": "llama-bpe"}, "splits text like 'llama-bpe'"),
        ({"tokenizer.ggml.model": "llama"}, "a tokenizer 'llama'"),
        ({"llama.rope.scaling.type": "yarn"}, "scales its rotary embedding"),
        ({"llama.rope.dimension_count": 4}, "only a part of each head"),
        ({"llama.context_length": None}, "does not say its llama.context_length"),
        ({"llama.block_count": 2}, "lacks 9: blk.1"),
    ],
)
def test_unknown_file_is_refused_by_name(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", metadata=change)
    with pytest.raises(ReproError, match=says) as caught:
        convert_gguf(path, tmp_path)
    assert caught.value.exit_code == Exit.VERIFICATION
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("extra", ["blk.0.attn_q.bias", "rope_freqs.weight", "blk.0.ffn_gate_exps.weight"])
def test_tensor_that_a_llama_has_not_is_refused(tmp_path: Path, extra: str) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", arrays={extra: np.ones(4, np.float32)})
    with pytest.raises(ReproError, match=extra):
        convert_gguf(path, tmp_path)


@pytest.mark.parametrize("content", [b"", b"GGU", b"PK\x03\x04", b"GGUF", b"GGUF\x03\0\0\0"])
def test_other_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ReproError, match="GGUF"):
        convert_gguf(tmp_path / "m.gguf", tmp_path)
