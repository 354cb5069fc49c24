"""The gate: proves on this machine, with this pair, that every arm computes what it says, before anything is timed."""

import contextlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from specprefill_repro.errors import ReproError
from specprefill_repro.gate.kernel import kernel_calls, kernel_scores
from specprefill_repro.gate.one_by_one import read_one_by_one
from specprefill_repro.gate.oracle import LlamaOracle, oracle_scores, why_not_covered
from specprefill_repro.gate.schema import Check
from specprefill_repro.models.schema import Manifest
from specprefill_repro.prefill import dense, random_selection, speculative
from specprefill_repro.prefill.architectures import end_tokens, structure
from specprefill_repro.prefill.arms import Models, Request
from specprefill_repro.prefill.chunked import (
    cached_tokens,
    key_caches,
    most_likely,
    new_cache,
    next_logits,
    read_prompt,
)
from specprefill_repro.prefill.loading import load_model
from specprefill_repro.prefill.look_ahead import captured_calls, look_ahead
from specprefill_repro.prefill.positions import PositionedModel, check_vector_offsets, rotary_is_original
from specprefill_repro.prefill.scoring import token_scores
from specprefill_repro.prefill.sparse import prefill_kept
from specprefill_repro.study.plan import Arm, ArmKind
from specprefill_repro.study.schema import Selection

PROMPT_TOKENS = 128
STEP = 64
DECODED = 3
# Of the range of the logits. Rounding stays far below; positions that were compacted exceed it many times over.
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Run:
    """What one prefill of the gate's prompt left behind; several checks look at the same one."""

    logits: Any
    """float32, (vocabulary,)"""
    types: str
    cached_before: int
    complete: bool
    """Every cache holds exactly the kept tokens."""
    kept: list[int]


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
    selection: Selection
    parts: dict[str, int] = field(default_factory=dict)
    """Which objects the models consisted of when they were loaded."""
    runs: dict[str, Run] = field(default_factory=dict)
    """By name, each made when a check first asks for it."""


def load_pair(
    target: Manifest, draft: Manifest, target_folder: Path, draft_folder: Path, selection: Selection
) -> Loaded:
    """Load both models and draw a prompt of random token ids and a gapped list of positions, always the same."""
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
        selection=selection,
    )
    pair.parts.update(_identity(pair))
    return pair


def run_checks(pair: Loaded) -> Iterator[Check]:
    """Run every check in turn; a check that can't be made has failed, with the reason.

    Where the NumPy oracle does not cover a model, another check stands in its place, and says so.
    """
    for check in _checks(pair):
        try:
            yield check(pair)
        except (ReproError, RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            what = error.what if isinstance(error, ReproError) else f"{type(error).__name__}: {error}"
            yield Check(name=_name(check), passed=False, measured=f"could not be checked: {what}", required="no error")


def _checks(pair: Loaded) -> Iterator[Any]:
    yield tokenizers_equal
    yield rotary_settings_read
    yield vector_offsets
    yield scores_equal_oracle if why_not_covered(pair.draft_folder) is None else scores_equal_kernel
    yield keep_1_equals_dense
    yield gapped_selection_equals_oracle if why_not_covered(pair.target_folder) is None else gapped_equals_one_by_one
    found = structure(pair.target)
    if any(layer.window is not None for layer in found.attention):
        yield windows_count_positions
    yield keys_equal_dense if found.attention[0].index == 0 else keys_equal_one_by_one
    yield types_unchanged
    yield cache_starts_empty
    yield last_token_kept
    yield model_untouched
    yield model_untouched_after_error


def _name(check: Any) -> str:
    return str(check.__name__).replace("_", "-")


def tokenizers_equal(pair: Loaded) -> Check:
    """Draft and target must mean the same by the same ids."""
    target, draft = pair.target_manifest.tokenizer_sha256, pair.draft_manifest.tokenizer_sha256
    return Check(
        name="tokenizers-equal",
        passed=target == draft,
        measured=f"target {target[:12]}, draft {draft[:12]}",
        required="the same vocabulary, ids, merges and special tokens",
        guards=(21,),
    )


def rotary_settings_read(pair: Loaded) -> Check:
    """mlx_lm must look for the rotary settings where config.json has them, else it silently takes its defaults.

    Version 5 of transformers writes them as `rope_parameters`; mlx_lm reads those for some model types only.
    """
    overlooked = []
    for label, model, folder in (
        ("target", pair.target, pair.target_folder),
        ("draft", pair.draft, pair.draft_folder),
    ):
        config = json.loads((folder / "config.json").read_text())
        config = config.get("text_config") or config
        text = structure(model).text
        if "rope_parameters" in config and "rope_theta" not in config and not hasattr(text.args, "rope_parameters"):
            overlooked.append(f"{label}: rope_parameters of config.json were not read")
    return Check(
        name="rotary-settings-read",
        passed=not overlooked,
        measured="; ".join(overlooked) or "read, where there are any",
        required="base and scaling of the rotary embedding are those of config.json",
        guards=(15,),
    )


def vector_offsets(pair: Loaded) -> Check:
    """The device must rotate each token by its own position."""
    difference = max(check_vector_offsets(pair.target), check_vector_offsets(pair.draft))
    return Check(
        name="vector-offsets",
        passed=True,
        measured=f"largest difference {difference:.3g}",
        required="a vector of positions rotates as single positions do",
        guards=(15,),
    )


def scores_equal_oracle(pair: Loaded) -> Check:
    """Scores from captured queries and keys must equal those of an independent forward pass of the draft."""
    cache = new_cache(pair.draft)
    layers, decoded = look_ahead(pair.draft, pair.ids, cache, STEP, pair.selection.look_ahead, pair.draft_end_tokens)
    ours = np.array(token_scores(layers, pair.selection.pool), dtype=np.float64)
    oracle = LlamaOracle(pair.draft_folder).forward(
        [*pair.ids, *decoded], range(len(pair.ids) + len(decoded)), last_only=True
    )
    theirs = oracle_scores(oracle, len(pair.ids), pair.selection.pool)
    difference = float(np.abs(ours - theirs).max() / theirs.max())
    tolerance = TOLERANCE[_dtype(cache)] * 10
    return Check(
        name="scores-equal-oracle",
        passed=difference <= tolerance,
        measured=f"largest difference {difference:.2g} of the largest score, {len(decoded) + 1} queries",
        required=f"at most {tolerance:.2g}: the draft's own queries and keys, pooled as in the paper's code",
        guards=(14,),
    )


def scores_equal_kernel(pair: Loaded) -> Check:
    """In place of the oracle: scores must equal those from what the attention kernel was given, in NumPy."""
    caches = [new_cache(pair.draft) for _ in range(2)]
    layers, decoded = look_ahead(
        pair.draft, pair.ids, caches[0], STEP, pair.selection.look_ahead, pair.draft_end_tokens
    )
    # The untouched draft, with its last token in a pass of its own.
    read_prompt(pair.draft, pair.ids[:-1], caches[1], STEP)
    ours = np.array(token_scores(layers, pair.selection.pool), dtype=np.float64)
    passes = []
    for token in (pair.ids[-1], *decoded):
        with kernel_calls() as calls:
            next_logits(pair.draft, token, caches[1])
        passes.append(calls)
    theirs, wrong = kernel_scores(passes, len(pair.ids), pair.selection.pool)
    difference = float(np.abs(ours - theirs).max() / theirs.max())
    tolerance = TOLERANCE[_dtype(caches[0])] * 10
    return Check(
        name="scores-equal-kernel",
        passed=difference <= tolerance and wrong <= tolerance,
        measured=f"largest difference {difference:.2g} of the largest score, {len(decoded) + 1} queries; attention "
        f"recomputed from them within {wrong:.2g}; in place of the NumPy oracle ({why_not_covered(pair.draft_folder)})",
        required=f"at most {tolerance:.2g}: the draft's own queries and keys, pooled as in the paper's code",
        guards=(14,),
    )


def keep_1_equals_dense(pair: Loaded) -> Check:
    """Keeping every token must change nothing."""
    reference = _run(pair, "dense").logits
    with speculative.prefill(_models(pair), _request(pair, ArmKind.SPECULATIVE, keep=1.0)) as prefilled:
        found = np.array(prefilled.logits.astype(mx.float32))
        kept = len(prefilled.kept)
    return _compare("keep-1-equals-dense", found, reference, pair, (16,), f"{kept} of {len(pair.ids)} tokens kept")


def gapped_selection_equals_oracle(pair: Loaded) -> Check:
    """With gaps between the kept tokens, logits must equal the oracle's at the same positions, decoding included."""
    found, ids, positions = _read_kept(pair, pair.ids, pair.kept)
    expected = LlamaOracle(pair.target_folder).forward(ids, positions, last_only=False).logits[-1 - DECODED :]
    return _compare("gapped-selection-equals-oracle", found, expected, pair, (15, 17), _gapped(pair, ""))


def gapped_equals_one_by_one(pair: Loaded) -> Check:
    """In place of the oracle: the untouched model, one token at a time, told each token's position by its cache."""
    found, ids, positions = _read_kept(pair, pair.ids, pair.kept)
    expected = read_one_by_one(pair.target, ids, positions, last=1 + DECODED).logits
    reason = f", in place of the NumPy oracle ({why_not_covered(pair.target_folder)})"
    return _compare("gapped-equals-one-by-one", found, expected, pair, (15, 17, 22), _gapped(pair, reason))


def windows_count_positions(pair: Loaded) -> Check:
    """A sliding window must reach back over original positions, not over kept tokens."""
    windows = sorted({layer.window for layer in structure(pair.target).attention if layer.window is not None})
    # Some tokens of every half window, over three of the longest: far fewer kept tokens than positions.
    starts = sorted({window * half // 2 for window in windows for half in range(7)})
    run = max(2, min(16, windows[0] // 12))
    kept = sorted({start + offset for start in starts for offset in range(run)})
    rng = random.Random("windows")
    prompt = [rng.randrange(pair.target_manifest.vocabulary) for _ in range(kept[-1] + 1)]
    found, ids, positions = _read_kept(pair, tuple(prompt), tuple(kept))
    expected = read_one_by_one(pair.target, ids, positions, last=1 + DECODED).logits
    what = f"windows of {', '.join(map(str, windows))}, {len(kept)} tokens kept of {len(prompt)}"
    return _compare("windows-count-positions", found, expected, pair, (15, 17), what)


def _read_kept(pair: Loaded, prompt: tuple[int, ...], kept: tuple[int, ...]) -> tuple[Any, list[int], list[int]]:
    """Logits of the last kept token and of the tokens decoded after it; all ids that were read, and their positions."""
    found: list[Any] = []
    request = Request(ids=prompt, arm=_request(pair, ArmKind.RANDOM).arm, step=STEP, seed="gate")
    with prefill_kept(_models(pair), request, kept, []) as prefilled:
        found.append(np.array(prefilled.logits.astype(mx.float32)))
        tokens = [prefilled.first_token]
        for _ in range(DECODED):
            logits = prefilled.decode(tokens[-1])
            found.append(np.array(logits.astype(mx.float32)))
            tokens.append(most_likely(logits))
    ids = [*(prompt[position] for position in kept), *tokens[:-1]]
    return np.stack(found), ids, [*kept, *range(len(prompt), len(prompt) + DECODED)]


def _gapped(pair: Loaded, reason: str) -> str:
    return f"{len(pair.kept)} of {len(pair.ids)} tokens kept, {DECODED} decoded{reason}"


def keys_equal_dense(pair: Loaded) -> Check:
    """In the first layer a key depends on its token and position alone: kept keys must equal dense ones."""
    with captured_calls(pair.target) as calls:
        pair.target(mx.array([pair.ids]), cache=new_cache(pair.target))
        full = calls[0].keys[0][:, mx.array(pair.kept)].astype(mx.float32)
    kept = _kept_keys(pair).astype(mx.float32)
    return _compare_keys("keys-equal-dense", pair, np.array(kept), np.array(full))


def keys_equal_one_by_one(pair: Loaded) -> Check:
    """In place of dense keys, for a model that begins with recurrent layers: the untouched model's, token by token."""
    ids = [pair.ids[position] for position in pair.kept]
    expected = read_one_by_one(pair.target, ids, pair.kept, last=1).keys
    return _compare_keys(
        "keys-equal-one-by-one", pair, np.array(_kept_keys(pair).astype(mx.float32)), np.array(expected)
    )


def _kept_keys(pair: Loaded) -> mx.array:
    """Keys of the first attention layer when the kept tokens are read in one pass: (key heads, kept tokens, size)."""
    model = PositionedModel(pair.target, len(pair.ids))
    model.positions.set(list(pair.kept))
    with captured_calls(pair.target) as calls:
        model(mx.array([[pair.ids[position] for position in pair.kept]]), cache=new_cache(model))
        return calls[0].keys[0]


def _compare_keys(name: str, pair: Loaded, found: Any, expected: Any) -> Check:
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    tolerance = TOLERANCE[_dtype_of_weights(pair.target)]
    return Check(
        name=name,
        passed=difference <= tolerance,
        measured=f"largest difference {difference:.2g} of the largest key",
        required=f"at most {tolerance:.2g}: kept tokens keep their original positions",
        guards=(15,),
    )


def types_unchanged(pair: Loaded) -> Check:
    """Dropping tokens must not turn keys or logits into another type."""
    found = [_run(pair, name).types for name in ("dense", "speculative", "random")]
    return Check(
        name="types-unchanged",
        passed=len(set(found)) == 1,
        measured=f"dense: {found[0]}; speculative: {found[1]}; random: {found[2]}",
        required="the same in every arm",
        guards=(41,),
    )


def cache_starts_empty(pair: Loaded) -> Check:
    """Every prefill must begin with an empty KV cache, also the second one on the same prompt."""
    runs = [_run(pair, "speculative"), _run(pair, "speculative again")]
    complete = all(run.complete for run in runs)
    return Check(
        name="cache-starts-empty",
        passed=all(run.cached_before == 0 for run in runs) and complete,
        measured=f"{runs[0].cached_before} and {runs[1].cached_before} tokens cached before; "
        f"after: {'the' if complete else 'not the'} kept ones",
        required="0 before, exactly the kept tokens after, in every layer",
        guards=(31,),
    )


def last_token_kept(pair: Loaded) -> Check:
    """The first generated token must be predicted from the last prompt token."""
    kept = [_run(pair, name).kept[-1] for name in ("speculative", "random")]
    return Check(
        name="last-token-kept",
        passed=kept == [len(pair.ids) - 1] * 2,
        measured=f"last kept positions {kept[0]} (speculative), {kept[1]} (random) of {len(pair.ids)} tokens",
        required=f"position {len(pair.ids) - 1} in both",
        guards=(19,),
    )


def model_untouched(pair: Loaded) -> Check:
    """After all the speculative prefills of the gate the models must be what they were, to the bit."""
    _run(pair, "speculative")
    return _untouched("model-untouched", pair)


def model_untouched_after_error(pair: Loaded) -> Check:
    """An error in the middle of a sparse prefill must leave the model as it was."""

    class Interruption(Exception):
        pass

    class Interrupting:
        """A cache whose layer can't be computed."""

        offset = 0

        def make_mask(self, *_: Any, **__: Any) -> None:
            return None

        def update_and_fetch(self, *_: Any) -> None:
            raise Interruption

    model = PositionedModel(pair.target, len(pair.ids))
    model.positions.set([5])
    cache = new_cache(model)
    last = max(layer.cache for layer in structure(pair.target).attention if layer.cache is not None)
    cache[last] = Interrupting()
    with contextlib.suppress(Interruption):
        model(mx.array([[1]]), cache=cache)
    return _untouched("model-untouched-after-error", pair)


def _untouched(name: str, pair: Loaded) -> Check:
    same_parts = _identity(pair) == pair.parts and rotary_is_original(pair.target) and rotary_is_original(pair.draft)
    same_logits = np.array_equal(_prefill(pair, ArmKind.DENSE).logits, _run(pair, "dense").logits)
    return Check(
        name=name,
        passed=bool(same_parts and same_logits),
        measured=f"parts {'the same' if same_parts else 'changed'}, "
        f"dense logits {'bit-identical' if same_logits else 'changed'}",
        required="the same weights and rotary modules, bit-identical dense logits",
        guards=(20,),
    )


def _identity(pair: Loaded) -> dict[str, int]:
    """Which objects the models consist of."""
    parts: dict[str, int] = {}
    for label, model in (("target", pair.target), ("draft", pair.draft)):
        parts.update({f"{label}.{name}": id(array) for name, array in tree_flatten(model.parameters())})
        found = structure(model)
        for function in ("scaled_dot_product_attention", found.architecture.query_scale):
            parts[f"{label}.{function}"] = id(getattr(found.code, function)) if function is not None else 0
        for index, module in enumerate(found.rotary_modules):
            parts[f"{label}.{index}.rotary"] = id(getattr(module, str(found.architecture.rotary)))
    return parts


def _run(pair: Loaded, name: str) -> Run:
    """The prefill of that name: an arm, or an arm `again`."""
    if name not in pair.runs:
        pair.runs[name] = _prefill(pair, ArmKind(name.partition(" ")[0]))
    return pair.runs[name]


def _prefill(pair: Loaded, kind: ArmKind) -> Run:
    arms = {
        ArmKind.DENSE: dense.prefill,
        ArmKind.SPECULATIVE: speculative.prefill,
        ArmKind.RANDOM: random_selection.prefill,
    }
    with arms[kind](_models(pair), _request(pair, kind)) as prefilled:
        return Run(
            logits=np.array(prefilled.logits.astype(mx.float32)),
            types=f"keys {_dtype(prefilled.cache)}, logits {_short(prefilled.logits.dtype)}",
            cached_before=prefilled.cache_tokens_before,
            complete=cached_tokens(prefilled.cache) == {len(prefilled.kept)},
            kept=prefilled.kept,
        )


def _models(pair: Loaded) -> Models:
    return Models(target=pair.target, draft=pair.draft, draft_end_tokens=pair.draft_end_tokens)


def _request(pair: Loaded, kind: ArmKind, keep: float = 0.2) -> Request:
    selection = pair.selection.model_copy(update={"head": 8, "tail": 8, "chunk": 16})
    arm = Arm(kind=kind) if kind is ArmKind.DENSE else Arm(kind=kind, keep=keep, selection=selection)
    return Request(ids=pair.ids, arm=arm, step=STEP, seed="gate")


def _compare(name: str, found: Any, expected: Any, pair: Loaded, guards: tuple[int, ...], what: str) -> Check:
    spread = float(expected.max() - expected.min())
    difference = float(np.abs(np.asarray(found, dtype=np.float64) - expected).max()) / spread
    tolerance = TOLERANCE[_dtype_of_weights(pair.target)]
    return Check(
        name=name,
        passed=bool(np.isfinite(difference) and difference <= tolerance),
        measured=f"{what}; largest difference {difference:.2g} of the range of the logits",
        required=f"at most {tolerance:.2g}",
        guards=guards,
    )


def _dtype(cache: list[Any]) -> str:
    return _short(key_caches(cache)[0].keys.dtype)


def _dtype_of_weights(model: nn.Module) -> str:
    """Of the first weights that are not packed integers."""
    arrays = (array for _, array in tree_flatten(model.parameters()))
    return next(_short(array.dtype) for array in arrays if mx.issubdtype(array.dtype, mx.floating))


def _short(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]
