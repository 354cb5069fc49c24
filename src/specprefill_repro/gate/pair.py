"""A pair of models in memory for the gate, its prompt, and what each arm did with it; several checks look at these."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from specprefill_repro.gate.layers import LayerCall, layer_calls
from specprefill_repro.models.schema import Manifest
from specprefill_repro.prefill import control, dense, speculative
from specprefill_repro.prefill.architectures import end_tokens, structure
from specprefill_repro.prefill.arms import Models, Prefilled, Request
from specprefill_repro.prefill.chunked import cached_tokens, key_caches
from specprefill_repro.prefill.loading import load_model
from specprefill_repro.prefill.positions import rotary_is_original
from specprefill_repro.study.plan import Arm, ArmKind
from specprefill_repro.study.schema import Selection
from specprefill_repro.trials.evidence import gather_evidence, outcome

PROMPT_TOKENS = 128
STEP = 64
KEEP = 0.2
DECODED = 3
SHORT = {"head": 8, "tail": 8, "chunk": 16, "tail_in_budget": False, "window_tail": "no"}
"""Of a rule, what would keep all of so short a prompt."""
# Of the range of the logits. Rounding stays far below; positions that were compacted exceed it many times over.
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Finding:
    """What a check found: the part of its result that it alone knows."""

    passed: bool
    measured: str
    required: str


@dataclass(frozen=True)
class Run:
    """What one prefill of the gate's prompt left behind."""

    logits: Any
    """float32, (vocabulary,)"""
    types: dict[str, str]
    """Of keys, values, the output of every layer, and logits; while reading and while decoding a token."""
    cached_before: tuple[int, int]
    """Tokens in the caches of target and draft when prefill began."""
    cached_after: list[int]
    """Tokens in the target's caches after it, distinct numbers."""
    recurrent: list[int]
    """Tokens that each recurrent layer of the target was given."""
    passes: list[int]
    """Tokens of each pass of the target, in order."""
    draft_passes: list[int]
    kept: list[int]
    scored: int
    """Prompt tokens that the draft scored."""
    look_ahead: list[int]
    outcome: str
    """As a trial would record it."""


@dataclass(frozen=True)
class Loaded:
    """A pair in memory, and what the checks share."""

    target: nn.Module
    draft: nn.Module
    target_manifest: Manifest
    draft_manifest: Manifest
    target_folder: Path
    draft_folder: Path
    draft_end_tokens: frozenset[int]
    ids: tuple[int, ...]
    kept: tuple[int, ...]
    """A list of positions with gaps, for checks that select nothing themselves."""
    selection: Selection
    """The study's, with head, tail and chunks short enough for the gate's prompt."""
    sampling: tuple[Selection, ...] = ()
    """Those of the study's rules whose look-ahead is drawn by chance, made short in the same way."""
    parts: dict[str, int] = field(default_factory=dict)
    """Which objects the models consisted of when they were loaded."""
    runs: dict[str, Run] = field(default_factory=dict)
    """By name, each made when a check first asks for it."""

    @property
    def models(self) -> Models:
        return Models(target=self.target, draft=self.draft, draft_end_tokens=self.draft_end_tokens)


def load_pair(
    target: Manifest,
    draft: Manifest,
    target_folder: Path,
    draft_folder: Path,
    selection: Selection,
    sampling: Sequence[Selection] = (),
) -> Loaded:
    """Load both models and draw a prompt of random token ids and a gapped list of positions, always the same.

    Args:
        sampling: rules of the study whose look-ahead is drawn by chance.
    """
    rng = random.Random("gate")
    ids = tuple(rng.randrange(min(target.vocabulary, draft.vocabulary)) for _ in range(PROMPT_TOKENS))
    middle = [position for position in range(8, PROMPT_TOKENS - 8) if (position // 16) % 3 == 1]
    target_model, _ = load_model(target_folder)
    draft_model, draft_config = load_model(draft_folder)
    pair = Loaded(
        target=target_model,
        draft=draft_model,
        target_manifest=target,
        draft_manifest=draft,
        target_folder=target_folder,
        draft_folder=draft_folder,
        draft_end_tokens=end_tokens(draft_config),
        ids=ids,
        kept=(*range(8), *middle, *range(PROMPT_TOKENS - 8, PROMPT_TOKENS)),
        sampling=tuple(rule.model_copy(update=SHORT) for rule in sampling),
        # Whatever the rule, the prompt's ends are kept and windows count positions: it is what the checks are about.
        selection=Selection(look_ahead=selection.look_ahead, pool=selection.pool, head=8, tail=8, chunk=16),
    )
    pair.parts.update(identity(pair))
    return pair


def identity(pair: Loaded) -> dict[str, int]:
    """Which objects the models consist of."""
    parts: dict[str, int] = {}
    for label, model in (("target", pair.target), ("draft", pair.draft)):
        parts.update({f"{label}.{name}": id(array) for name, array in tree_flatten(model.parameters())})
        found = structure(model)
        for function in ("scaled_dot_product_attention", found.architecture.query_scale):
            parts[f"{label}.{function}"] = id(getattr(found.code, function)) if function is not None else 0
        parts[f"{label}.norm"] = id(found.final_norm)
        for index, module in enumerate(found.rotary_modules):
            parts[f"{label}.{index}.rotary"] = id(getattr(module, str(found.architecture.rotary)))
    return parts


def is_as_loaded(pair: Loaded) -> bool:
    return identity(pair) == pair.parts and rotary_is_original(pair.target) and rotary_is_original(pair.draft)


def request(pair: Loaded, kind: ArmKind, keep: float = KEEP, ids: tuple[int, ...] | None = None) -> Request:
    """The gate's prompt, or another one, for an arm."""
    arm = Arm(kind=kind) if kind is ArmKind.DENSE else Arm(kind=kind, keep=keep, selection=pair.selection)
    return Request(ids=pair.ids if ids is None else ids, arm=arm, step=STEP, seed="gate")


def run(pair: Loaded, name: str) -> Run:
    """The prefill of that name, made once: an arm, or an arm and `again`."""
    if name not in pair.runs:
        pair.runs[name] = prefill(pair, request(pair, ArmKind(name.partition(" ")[0])))
    return pair.runs[name]


def prefill(pair: Loaded, asked: Request) -> Run:
    """Prefill with one of the arms, watching the target's layers, and decode one token."""
    arms = {
        ArmKind.DENSE: dense.prefill,
        ArmKind.SPECULATIVE: speculative.prefill,
        ArmKind.RANDOM: control.prefill,
    }
    if asked.arm.kind is not ArmKind.DENSE:
        run(pair, "dense")  # What the model computes before anything was done to it.
    with (
        layer_calls(pair.target) as calls,
        layer_calls(pair.draft) as draft_calls,
        arms[asked.arm.kind](pair.models, asked) as prefilled,
    ):
        read = list(calls)
        logits = np.array(prefilled.logits.astype(mx.float32))
        after = cached_tokens(prefilled.cache)
        decoded = prefilled.decode(prefilled.first_token)
        types = _types(prefilled, decoded, [call.dtype for call in calls])
    recurrent = [sum(call.tokens for call in read if call.layer == layer) for layer in structure(pair.target).recurrent]
    evidence = gather_evidence(
        prefilled, pair.target, needle=((0, 1),), cached_after=set(after), key_dtype=types["keys"], logits_sha256=""
    )
    return Run(
        logits=logits,
        types=types,
        cached_before=(prefilled.cache_tokens_before, prefilled.draft_cache_tokens_before),
        cached_after=sorted(after),
        recurrent=recurrent,
        passes=_passes(read),
        draft_passes=_passes(draft_calls),
        kept=prefilled.kept,
        scored=prefilled.tokens_scored,
        look_ahead=prefilled.look_ahead_tokens,
        outcome=outcome(asked.arm, evidence, len(asked.ids)),
    )


def _passes(calls: list[LayerCall]) -> list[int]:
    first = min((call.layer for call in calls), default=0)
    return [call.tokens for call in calls if call.layer == first]


def _types(prefilled: Prefilled, decoded: mx.array, layers: list[Any]) -> dict[str, str]:
    held = key_caches(prefilled.cache)
    found = {
        "keys": [entry.keys.dtype for entry in held],
        "values": [entry.values.dtype for entry in held],
        "layers": layers,
        "logits": [prefilled.logits.dtype, decoded.dtype],
    }
    return {what: " and ".join(sorted({short(dtype) for dtype in dtypes})) for what, dtypes in found.items()}


def compare(found: Any, expected: Any, pair: Loaded, what: str) -> Finding:
    """Logits against those of a judge, as a share of their range."""
    spread = float(expected.max() - expected.min())
    difference = float(np.abs(np.asarray(found, dtype=np.float64) - expected).max()) / spread
    tolerance = TOLERANCE[dtype_of_weights(pair.target)]
    return Finding(
        passed=bool(np.isfinite(difference) and difference <= tolerance),
        measured=f"{what}; largest difference {difference:.2g} of the range of the logits",
        required=f"at most {tolerance:.2g}",
    )


def dtype_of_weights(model: nn.Module) -> str:
    """Of the first weights that are not packed integers."""
    arrays = (array for _, array in tree_flatten(model.parameters()))
    return next(short(array.dtype) for array in arrays if mx.issubdtype(array.dtype, mx.floating))


def short(dtype: Any) -> str:
    """Such as float32."""
    return str(dtype).rpartition(".")[2]
