"""A Llama forward pass in NumPy, float64, straight from the weight files: the independent judge of the gate.

It shares no code with mlx or mlx_lm, takes any list of positions, and computes every layer in the plainest way.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from specprefill_repro.errors import Exit, ReproError

Array = NDArray[np.float64]


@dataclass
class OracleResult:
    logits: Array
    """(tokens, vocabulary)"""
    queries: list[Array] = field(default_factory=list)
    """Layer by layer, rotated: (heads, tokens, head size)."""
    keys: list[Array] = field(default_factory=list)
    """Layer by layer, rotated: (key heads, tokens, head size)."""


class LlamaOracle:
    """Reads a model folder; `forward` computes all logits of a list of tokens at given positions."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        if self.config.get("model_type") != "llama" or "quantization" in self.config:
            kind = f"{self.config.get('model_type')}{' (quantised)' if 'quantization' in self.config else ''}"
            raise ReproError(
                f"The NumPy oracle of the gate does not cover this model: {kind}.",
                "It knows unquantised Llama models; without an oracle, positions can't be proved right.",
                "Use an unquantised model of type llama.",
                Exit.VERIFICATION,
            )
        self._files: dict[str, Path] = {}
        for path in sorted(folder.glob("model*.safetensors")):
            with safe_open(path, "numpy") as file:
                self._files.update(dict.fromkeys(file.keys(), path))

    def forward(self, ids: Sequence[int], positions: Sequence[int], last_only: bool = True) -> OracleResult:
        """Compute logits (of the last token only, unless told otherwise), and every layer's queries and keys.

        Args:
            ids: token ids, in order.
            positions: ascending original position of each.
        """
        config = self.config
        heads, key_heads = (
            config["num_attention_heads"],
            config.get("num_key_value_heads", config["num_attention_heads"]),
        )
        size = config.get("head_dim") or config["hidden_size"] // heads
        angles = np.outer(np.asarray(positions, dtype=np.float64), self._frequencies(size))
        mask = np.triu(np.full((len(ids), len(ids)), -np.inf), k=1)
        embedding = self._weight("model.embed_tokens.weight")
        hidden = embedding[list(ids)]
        result = OracleResult(logits=hidden)
        for layer in range(config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            x = self._norm(hidden, prefix + "input_layernorm.weight")
            query = _rotate(_heads(x @ self._weight(prefix + "self_attn.q_proj.weight").T, heads), angles)
            key = _rotate(_heads(x @ self._weight(prefix + "self_attn.k_proj.weight").T, key_heads), angles)
            value = _heads(x @ self._weight(prefix + "self_attn.v_proj.weight").T, key_heads)
            result.queries.append(query)
            result.keys.append(key)
            repeated = np.repeat(np.arange(key_heads), heads // key_heads)
            weights = softmax(query @ key[repeated].swapaxes(1, 2) / math.sqrt(size) + mask)
            mixed = (weights @ value[repeated]).swapaxes(0, 1).reshape(len(ids), -1)
            hidden = hidden + mixed @ self._weight(prefix + "self_attn.o_proj.weight").T
            x = self._norm(hidden, prefix + "post_attention_layernorm.weight")
            gate = x @ self._weight(prefix + "mlp.gate_proj.weight").T
            up = x @ self._weight(prefix + "mlp.up_proj.weight").T
            hidden = hidden + (gate / (1 + np.exp(-gate)) * up) @ self._weight(prefix + "mlp.down_proj.weight").T
        last = self._norm(hidden[-1:] if last_only else hidden, "model.norm.weight")
        head = embedding if config.get("tie_word_embeddings", True) else self._weight("lm_head.weight")
        result.logits = last @ head.T
        return result

    def _weight(self, name: str) -> Array:
        with safe_open(self._files[name], "numpy") as file:
            return file.get_tensor(name).astype(np.float64)

    def _norm(self, x: Array, weight: str) -> Array:
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean_square + self.config["rms_norm_eps"]) * self._weight(weight)

    def _frequencies(self, size: int) -> Array:
        frequencies = self.config.get("rope_theta", 10000.0) ** (-np.arange(0, size, 2, dtype=np.float64) / size)
        scaling = self.config.get("rope_scaling")
        if scaling is None:
            return frequencies
        raise ReproError(
            f"The NumPy oracle of the gate does not know the rotary scaling {scaling}.",
            "Without an oracle, positions can't be proved right.",
            "Use a model without rope_scaling.",
            Exit.VERIFICATION,
        )


def _heads(x: Array, count: int) -> Array:
    return x.reshape(len(x), count, -1).swapaxes(0, 1)


def _rotate(x: Array, angles: Array) -> Array:
    """Rotate each pair (i, i + size/2) of the last axis by its position's angle."""
    first, second = np.split(x, 2, axis=-1)
    cosine, sine = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=-1)


def softmax(x: Array) -> Array:
    """Softmax over the last axis."""
    shifted = np.exp(x - x.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def oracle_scores(result: OracleResult, prompt_tokens: int, pool: int) -> Array:
    """Scores of the prompt tokens, from queries of the last prompt token and those after it: (prompt tokens,)."""
    kernel = np.full(pool, 1 / pool)
    best: Array | None = None
    for query, key in zip(result.queries, result.keys, strict=True):
        repeated = np.repeat(np.arange(len(key)), len(query) // len(key))
        products = query[:, prompt_tokens - 1 :] @ key[repeated][:, :prompt_tokens].swapaxes(1, 2)
        weights = softmax(products / math.sqrt(query.shape[-1]))
        pooled = np.apply_along_axis(lambda row: np.convolve(row, kernel, mode="same"), -1, weights)
        largest = pooled.max(axis=0)
        best = largest if best is None else np.maximum(best, largest)
    if best is None:
        raise ValueError("no layers")
    return best.mean(axis=0)
