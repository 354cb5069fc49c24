"""Turn a GGUF file of a Llama model into an MLX model directory: weights, config, tokenizer and chat template.

Three things differ between the two formats. GGUF stores the rows of the query and key projections in the order that
an interleaved rotary embedding needs; mlx_lm rotates halves, so the rows are put back (the inverse of `permute` in
llama.cpp's convert_hf_to_gguf.py). Quantised weights come in blocks with a scale and a bias; they are written as the
float32 values that they stand for, since only float32 is fast on a CPU and the file then loads fastest. And the
tokenizer is a list of tokens and merges; how text is split before merging is known only by a name (`pre`).
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.models.safetensors_file import Tensor, write_safetensors

TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

SPECIAL, USER_DEFINED = 3, 4
"""Token types of GGUF: control tokens, and tokens that are matched before any splitting but are ordinary text."""


def convert_gguf(gguf: Path, out: Path, progress: Callable[[int, int], None] | None = None) -> None:
    """Write config.json, model.safetensors (float32), tokenizer.json and tokenizer_config.json into the folder `out`.

    Raises:
        ReproError: not a GGUF file, or of an architecture, a tokenizer or with tensors that this does not know.
        OSError: as from writing any file.
    """
    arrays, metadata = _load(gguf)
    config = _config(metadata, tied="output.weight" not in arrays)
    tensors = _tensors(arrays, config)
    (out / "config.json").write_text(json.dumps(config, indent=1))
    (out / "tokenizer.json").write_text(json.dumps(_tokenizer(metadata), ensure_ascii=False), encoding="utf-8")
    (out / "tokenizer_config.json").write_text(json.dumps(_tokenizer_config(metadata), indent=1))
    write_safetensors(out / "model.safetensors", tensors, progress)


def _load(gguf: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    import mlx.core as mx

    with gguf.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise _unsupported(f"{gguf.name} is not a GGUF file; it begins with {magic!r}")
    try:
        # The CPU, so that the same file gives the same bytes on every machine.
        with mx.stream(mx.cpu):
            arrays, metadata = mx.load(str(gguf), return_metadata=True)
    except (RuntimeError, ValueError) as error:
        raise _unsupported(f"{gguf.name} could not be read: {error}") from error
    return arrays, {key: value.tolist() if isinstance(value, mx.array) else value for key, value in metadata.items()}


def _config(metadata: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    """config.json as mlx_lm reads it."""
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise _unsupported(f"the GGUF file holds a model of architecture {architecture!r}; known: llama")
    scaling = [key for key in metadata if key.startswith("llama.rope.scaling")]
    if scaling:
        raise _unsupported(f"the GGUF file scales its rotary embedding ({', '.join(scaling)})")

    def get(key: str) -> Any:
        if key not in metadata:
            raise _unsupported(f"the GGUF file does not say its {key}")
        return metadata[key]

    heads, hidden = get("llama.attention.head_count"), get("llama.embedding_length")
    head_dim = hidden // heads
    if get("llama.rope.dimension_count") != head_dim:
        raise _unsupported("the GGUF file rotates only a part of each head")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": get("llama.feed_forward_length"),
        "num_hidden_layers": get("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        # A float32 in the file: written with the digits that stand for it, 1e-05 and not 9.9999997e-06.
        "rms_norm_eps": float(str(np.float32(get("llama.attention.layer_norm_rms_epsilon")))),
        "rope_theta": float(metadata.get("llama.rope.freq_base", 10000.0)),
        "vocab_size": len(get("tokenizer.ggml.tokens")),
        "max_position_embeddings": get("llama.context_length"),
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": get("tokenizer.ggml.eos_token_id"),
        "torch_dtype": "float32",
    }


def _tensors(arrays: dict[str, Any], config: dict[str, Any]) -> list[Tensor]:
    """One float32 tensor for each weight, under mlx_lm's names; dequantised only when it is written."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    layers = config["num_hidden_layers"]
    names = {f"{theirs}.weight": (f"{ours}.weight", 0) for theirs, ours in TOP.items()}
    for layer in range(layers):
        for theirs, ours in IN_LAYER.items():
            names[f"blk.{layer}.{theirs}.weight"] = (f"model.layers.{layer}.{ours}.weight", heads.get(theirs, 0))
    if config["tie_word_embeddings"]:
        del names["output.weight"]
    stems = {name.removesuffix(".weight") for name in names}
    quantised = {f"{stem}.{part}" for stem in stems for part in ("scales", "biases")}
    unknown = sorted(arrays.keys() - names.keys() - quantised)
    missing = sorted(names.keys() - arrays.keys())
    if unknown or missing:
        raise _unsupported(
            f"the GGUF file has {len(unknown)} tensors that a Llama has not, and lacks {len(missing)}: "
            f"{', '.join((unknown + missing)[:4])}"
        )
    return [_tensor(arrays, theirs, ours, rotated) for theirs, (ours, rotated) in names.items()]


def _tensor(arrays: dict[str, Any], theirs: str, ours: str, rotated_heads: int) -> Tensor:
    stem = theirs.removesuffix(".weight")
    scales = arrays.get(f"{stem}.scales")
    shape = list(arrays[theirs].shape)
    if scales is not None:
        shape[-1] = scales.shape[-1] * 32  # GGUF's simple formats have one scale for 32 weights

    def read() -> bytes:
        values = _dequantised(arrays[theirs], scales, arrays.get(f"{stem}.biases"))
        return (half_split_rows(values, rotated_heads) if rotated_heads else values).tobytes()

    return Tensor(ours, "F32", tuple(shape), read)


def _dequantised(weight: Any, scales: Any, biases: Any) -> NDArray[np.float32]:
    import mlx.core as mx

    with mx.stream(mx.cpu):
        if scales is not None:
            bits = 32 * weight.shape[-1] // (scales.shape[-1] * 32)
            scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
            weight = mx.dequantize(weight, scales, biases, group_size=32, bits=bits)
        return np.array(weight.astype(mx.float32))


def half_split_rows(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Reorder the rows of a query or key projection, (heads * head_dim, hidden), from interleaved pairs to halves.

    Row 2 i of a head becomes its row i, row 2 i + 1 its row head_dim / 2 + i.
    """
    rows = weight.shape[0]
    return weight.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def _tokenizer(metadata: dict[str, Any]) -> dict[str, Any]:
    """tokenizer.json of a byte-level BPE tokenizer."""
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre != "smollm":
        raise _unsupported(f"the GGUF file has a tokenizer {kind!r} that splits text like {pre!r}; known: gpt2, smollm")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    types = metadata["tokenizer.ggml.token_type"]
    added = [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": types[index] == SPECIAL,
        }
        for index, token in enumerate(metadata["tokenizer.ggml.tokens"])
        if types[index] in (SPECIAL, USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            # `smollm` of llama.cpp: each digit alone, then GPT-2's expression.
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])},
            "merges": [merge.split(" ", 1) for merge in metadata["tokenizer.ggml.merges"]],
        },
    }


def _tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"],
    }
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        index = metadata.get(f"tokenizer.ggml.{theirs}_token_id")
        if index is not None:
            config[f"{ours}_token"] = tokens[index]
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = metadata["tokenizer.chat_template"]
    return config


def _unsupported(problem: str) -> ReproError:
    return ReproError(
        problem[0].upper() + problem[1:] + ".",
        "Only GGUF files of Llama models with SmolLM's tokenizer are converted; a guess would give a wrong model.",
        "Use the model's safetensors instead: source kind `hf` or `local` in config/models.yaml.",
        Exit.VERIFICATION,
    )
