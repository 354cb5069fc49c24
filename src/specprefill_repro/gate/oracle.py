"""A forward pass in NumPy, float64, straight from the weight files: the independent judge of the gate.

It shares no code with mlx or mlx_lm, takes any list of positions, and computes every layer in the plainest way. It
covers the Llama family: Llama, Mistral, Qwen 2 and Qwen 3, with full attention in every layer.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.gate.rotary_frequencies import SCALINGS, rotary_frequencies
from specprefill_repro.gate.weights import Array, Weights

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
LIMIT = 2_000_000_000
"""Weights of the largest model that is computed whole: about half a minute. Of larger ones, the first layers are."""
TIED_BY_DEFAULT = ("llama", "mistral", "qwen2")


@dataclass
class OracleResult:
    logits: Array
    """(tokens, vocabulary)"""
    queries: list[Array] = field(default_factory=list)
    """Layer by layer, rotated: (heads, tokens, head size)."""
    keys: list[Array] = field(default_factory=list)
    """Layer by layer, rotated: (key heads, tokens, head size)."""


def why_not_covered(folder: Path) -> str | None:
    """Why the oracle does not compute the whole model in a folder; None when it does."""
    unknown = why_unknown(folder)
    if unknown is not None:
        return unknown
    reached, layers, weights = _reach(folder)
    if reached < layers:
        return f"{weights / 1e9:.0f} billion weights would take it too long"
    return None


def layers_within_reach(folder: Path) -> int:
    """How many layers of a model that it knows the oracle computes: all, or as many as `LIMIT` allows, two at least."""
    return _reach(folder)[0]


def _reach(folder: Path) -> tuple[int, int, int]:
    """Layers within the limit, all layers, and all weights."""
    weights = Weights(folder)
    count = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    by_layer = [
        sum(weights.elements(name) for name in weights.names(f"model.layers.{layer}.")) for layer in range(count)
    ]
    total = sum(weights.elements(name) for name in weights.names(""))
    if total <= LIMIT:
        return count, count, total
    reached = sum(so_far <= LIMIT for so_far in accumulate(by_layer))
    return max(2, min(reached, count - 1)), count, total


def why_unknown(folder: Path) -> str | None:
    """Why the oracle has no formulas for the model in a folder; None when it has."""
    config = json.loads((folder / "config.json").read_text())
    if config.get("model_type") not in MODEL_TYPES:
        return f"it does not know {config.get('model_type')}"
    if "sliding_attention" in (config.get("layer_types") or []):
        return "it does not know sliding windows"
    scaling = _rotary(config).get("rope_type", "default")
    if scaling not in SCALINGS:
        return f"it does not know the rotary scaling {scaling}"
    return next(Weights(folder).not_covered(), None)


class LlamaOracle:
    """Reads a model folder; `forward` computes all logits of a list of tokens at given positions.

    Raises:
        ReproError: the model is not covered.
    """

    def __init__(self, folder: Path) -> None:
        reason = why_unknown(folder)
        if reason is not None:
            raise ReproError(
                f"The NumPy oracle of the gate does not cover this model: {reason}.",
                "It knows the Llama family with full attention; other models have other checks.",
                "Use the check of the gate that needs no oracle.",
                Exit.VERIFICATION,
            )
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self._weights = Weights(folder)

    def forward(
        self, ids: Sequence[int], positions: Sequence[int], last_only: bool = True, layers: int | None = None
    ) -> OracleResult:
        """Compute logits (of the last token only, unless told otherwise), and every layer's queries and keys.

        Args:
            ids: token ids, in order.
            positions: ascending original position of each.
            layers: stop after the queries and keys of so many layers; no logits then.
        """
        config = self.config
        heads = config["num_attention_heads"]
        key_heads = config.get("num_key_value_heads") or heads
        size = config.get("head_dim") or config["hidden_size"] // heads
        frequencies, stretch = rotary_frequencies(size, _rotary(config), config)
        angles = np.outer(np.asarray(positions, dtype=np.float64), frequencies)
        mask = np.triu(np.full((len(ids), len(ids)), -np.inf), k=1)
        hidden = self._weights.rows("model.embed_tokens.weight", ids)
        result = OracleResult(logits=hidden[:0])
        for layer in range(config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            x = self._norm(hidden, prefix + "input_layernorm.weight")
            query = _heads(self._linear(x, prefix + "self_attn.q_proj"), heads)
            key = _heads(self._linear(x, prefix + "self_attn.k_proj"), key_heads)
            if prefix + "self_attn.q_norm.weight" in self._weights:
                query = self._norm(query, prefix + "self_attn.q_norm.weight")
                key = self._norm(key, prefix + "self_attn.k_norm.weight")
            query, key = rotate(query, angles) * stretch, rotate(key, angles) * stretch
            result.queries.append(query)
            result.keys.append(key)
            if len(result.keys) == layers:
                return result
            value = _heads(self._linear(x, prefix + "self_attn.v_proj"), key_heads)
            repeated = np.repeat(np.arange(key_heads), heads // key_heads)
            weights = softmax(query @ key[repeated].swapaxes(1, 2) / math.sqrt(size) + mask)
            mixed = (weights @ value[repeated]).swapaxes(0, 1).reshape(len(ids), -1)
            hidden = hidden + self._linear(mixed, prefix + "self_attn.o_proj")
            x = self._norm(hidden, prefix + "post_attention_layernorm.weight")
            gate = self._linear(x, prefix + "mlp.gate_proj")
            gated = gate / (1 + np.exp(-gate)) * self._linear(x, prefix + "mlp.up_proj")
            hidden = hidden + self._linear(gated, prefix + "mlp.down_proj")
        last = self._norm(hidden[-1:] if last_only else hidden, "model.norm.weight")
        tied = config.get("tie_word_embeddings", config["model_type"] in TIED_BY_DEFAULT)
        result.logits = self._linear(last, "model.embed_tokens" if tied else "lm_head")
        return result

    def _linear(self, x: Array, name: str) -> Array:
        product = np.concatenate([x @ block.T for block in self._weights.blocks(f"{name}.weight")], axis=-1)
        return product + self._weights[f"{name}.bias"] if f"{name}.bias" in self._weights else product

    def _norm(self, x: Array, weight: str) -> Array:
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean_square + self.config["rms_norm_eps"]) * self._weights[weight]


def _rotary(config: dict[str, Any]) -> dict[str, Any]:
    """The rotary settings, whether they lie where older or where newer versions of transformers write them."""
    settings = {**(config.get("rope_parameters") or {}), **(config.get("rope_scaling") or {})}
    kind = settings.get("rope_type") or settings.get("type") or "default"
    theta = config.get("rope_theta") or settings.get("rope_theta") or 10000.0
    return {**settings, "rope_type": "longrope" if kind == "su" else kind, "rope_theta": theta}


def _heads(x: Array, count: int) -> Array:
    return x.reshape(len(x), count, -1).swapaxes(0, 1)


def rotate(x: Array, angles: Array) -> Array:
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
    scores = None
    for query, key in zip(result.queries, result.keys, strict=True):
        repeated = np.repeat(np.arange(len(key)), len(query) // len(key))
        products = query[:, prompt_tokens - 1 :] @ key[repeated][:, :prompt_tokens].swapaxes(1, 2)
        largest = largest_pooled(softmax(products / math.sqrt(query.shape[-1])), pool)
        scores = largest if scores is None else np.maximum(scores, largest)
    if scores is None:
        raise ValueError("no layers")
    return np.asarray(scores.mean(axis=0))


def largest_pooled(weights: Array, pool: int) -> Array:
    """Average pooling over prompt positions, zero outside; then the largest over heads: (queries, prompt tokens)."""
    kernel = np.full(pool, 1 / pool)
    pooled = np.apply_along_axis(lambda row: np.convolve(row, kernel, mode="same"), -1, weights)
    return np.asarray(pooled.max(axis=0))
