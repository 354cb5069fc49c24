"""The gate: proves on this machine, with this pair, that every arm computes what it says, before anything is timed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from specprefill_repro.errors import ReproError
from specprefill_repro.gate.oracle import LlamaOracle, oracle_scores
from specprefill_repro.gate.schema import Check
from specprefill_repro.models.schema import Manifest
from specprefill_repro.prefill import dense, random_selection, speculative
from specprefill_repro.prefill.architectures import attention_modules, end_tokens, rotary_name
from specprefill_repro.prefill.arms import Models, Request
from specprefill_repro.prefill.chunked import cached_tokens, most_likely, new_cache, prefill_all_but_last
from specprefill_repro.prefill.loading import load_model
from specprefill_repro.prefill.look_ahead import look_ahead
from specprefill_repro.prefill.positions import check_vector_offsets, positioned, rotary_is_original
from specprefill_repro.prefill.scoring import token_scores
from specprefill_repro.prefill.sparse import prefill_kept
from specprefill_repro.study.plan import Arm, ArmKind
from specprefill_repro.study.schema import Selection

PROMPT_TOKENS = 192
STEP = 64
DECODED = 3
# Of the range of the logits. Rounding stays far below; positions that were compacted exceed it many times over.
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


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


def load_pair(
    target: Manifest, draft: Manifest, target_folder: Path, draft_folder: Path, selection: Selection
) -> Loaded:
    """Load both models and draw a prompt of random token ids and a gapped list of positions, always the same."""
    rng = random.Random("gate")
    ids = tuple(rng.randrange(min(target.vocabulary, draft.vocabulary)) for _ in range(PROMPT_TOKENS))
    middle = [position for position in range(8, PROMPT_TOKENS - 8) if (position // 16) % 3 == 1]
    target_model, _ = load_model(target_folder)
    draft_model, draft_config = load_model(draft_folder)
    return Loaded(
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


def run_checks(pair: Loaded) -> Iterator[Check]:
    """Run every check in turn; a check that can't be made has failed, with the reason."""
    for check in (
        tokenizers_equal,
        vector_offsets,
        scores_equal_oracle,
        keep_one_equals_dense,
        gapped_selection_equals_oracle,
        keys_equal_dense,
        types_unchanged,
        cache_starts_empty,
        last_token_kept,
        model_untouched,
        model_untouched_after_error,
    ):
        try:
            yield check(pair)
        except (ReproError, RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            what = error.what if isinstance(error, ReproError) else f"{type(error).__name__}: {error}"
            yield Check(name=_name(check), passed=False, measured=f"could not be checked: {what}", required="no error")


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
    prefill_all_but_last(pair.draft, pair.ids, cache, STEP)
    layers, decoded = look_ahead(pair.draft, pair.ids[-1], cache, pair.selection.look_ahead, pair.draft_end_tokens)
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


def keep_one_equals_dense(pair: Loaded) -> Check:
    """Keeping every token must change nothing."""
    reference = _dense_logits(pair)
    with speculative.prefill(_models(pair), _request(pair, ArmKind.SPECULATIVE, keep=1.0)) as prefilled:
        found = np.array(prefilled.logits.astype(mx.float32))
        kept = len(prefilled.kept)
    return _compare("keep-1-equals-dense", found, reference, pair, (16,), f"{kept} of {len(pair.ids)} tokens kept")


def gapped_selection_equals_oracle(pair: Loaded) -> Check:
    """With gaps between the kept tokens, logits must equal the oracle's at the same positions, decoding included."""
    ids = [pair.ids[position] for position in pair.kept]
    found: list[Any] = []
    with prefill_kept(_models(pair), _request(pair, ArmKind.RANDOM), pair.kept, []) as prefilled:
        found.append(np.array(prefilled.logits.astype(mx.float32)))
        tokens = [prefilled.first_token]
        for _ in range(DECODED):
            logits = prefilled.decode(tokens[-1])
            found.append(np.array(logits.astype(mx.float32)))
            tokens.append(most_likely(logits))
    oracle = LlamaOracle(pair.target_folder)
    positions = [*pair.kept, *range(len(pair.ids), len(pair.ids) + DECODED)]
    expected = oracle.forward([*ids, *tokens[:-1]], positions, last_only=False).logits[-1 - DECODED :]
    return _compare(
        "gapped-selection-equals-oracle",
        np.stack(found),
        expected,
        pair,
        (15, 17),
        f"{len(ids)} of {len(pair.ids)} tokens kept, {DECODED} decoded",
    )


def keys_equal_dense(pair: Loaded) -> Check:
    """In the first layer a key depends on its token and position alone: kept keys must equal dense ones."""
    with dense.prefill(_models(pair), _request(pair, ArmKind.DENSE)) as prefilled:
        full = prefilled.cache[0].keys[0][:, mx.array(pair.kept)].astype(mx.float32)
    with prefill_kept(_models(pair), _request(pair, ArmKind.RANDOM), pair.kept, []) as prefilled:
        kept = prefilled.cache[0].keys[0][:, : len(pair.kept)].astype(mx.float32)
    difference = float(mx.abs(full - kept).max().item() / mx.abs(full).max().item())
    tolerance = TOLERANCE[_dtype(prefilled.cache)]
    return Check(
        name="keys-equal-dense",
        passed=difference <= tolerance,
        measured=f"largest difference {difference:.2g} of the largest key",
        required=f"at most {tolerance:.2g}: kept tokens keep their original positions",
        guards=(15,),
    )


def types_unchanged(pair: Loaded) -> Check:
    """Dropping tokens must not turn keys or logits into another type."""
    found = []
    for prefill, kind in (
        (dense.prefill, ArmKind.DENSE),
        (speculative.prefill, ArmKind.SPECULATIVE),
        (random_selection.prefill, ArmKind.RANDOM),
    ):
        with prefill(_models(pair), _request(pair, kind)) as prefilled:
            found.append(f"keys {_dtype(prefilled.cache)}, logits {_short(prefilled.logits.dtype)}")
    return Check(
        name="types-unchanged",
        passed=len(set(found)) == 1,
        measured=f"dense: {found[0]}; speculative: {found[1]}; random: {found[2]}",
        required="the same in every arm",
        guards=(41,),
    )


def cache_starts_empty(pair: Loaded) -> Check:
    """Every prefill must begin with an empty KV cache, also the second one on the same prompt."""
    found = []
    for _ in range(2):
        with speculative.prefill(_models(pair), _request(pair, ArmKind.SPECULATIVE)) as prefilled:
            found.append(prefilled.cache_tokens_before)
            complete = all(cached_tokens([entry]) == len(prefilled.kept) for entry in prefilled.cache)
    return Check(
        name="cache-starts-empty",
        passed=found == [0, 0] and complete,
        measured=f"{found[0]} and {found[1]} tokens cached before; after: {'the' if complete else 'not the'} kept ones",
        required="0 before, exactly the kept tokens after, in every layer",
        guards=(31,),
    )


def last_token_kept(pair: Loaded) -> Check:
    """The first generated token must be predicted from the last prompt token."""
    kept = []
    for prefill, kind in ((speculative.prefill, ArmKind.SPECULATIVE), (random_selection.prefill, ArmKind.RANDOM)):
        with prefill(_models(pair), _request(pair, kind, keep=0.01)) as prefilled:
            kept.append(prefilled.kept[-1])
    return Check(
        name="last-token-kept",
        passed=kept == [len(pair.ids) - 1] * 2,
        measured=f"last kept positions {kept[0]} (speculative), {kept[1]} (random) of {len(pair.ids)} tokens",
        required=f"position {len(pair.ids) - 1} in both",
        guards=(19,),
    )


def model_untouched(pair: Loaded) -> Check:
    """After a speculative prefill the models must be what they were, to the bit."""
    before, reference = _identity(pair), _dense_logits(pair)
    with speculative.prefill(_models(pair), _request(pair, ArmKind.SPECULATIVE)) as prefilled:
        prefilled.decode(prefilled.first_token)
    return _untouched("model-untouched", pair, before, reference)


def model_untouched_after_error(pair: Loaded) -> Check:
    """An error in the middle of a sparse prefill must leave the model as it was."""
    before, reference = _identity(pair), _dense_logits(pair)

    class Interruption(Exception):
        pass

    try:
        with positioned(pair.target) as (positions, _):
            positions.set([5])
            pair.target(mx.array([[1]]), cache=new_cache(pair.target))
            raise Interruption
    except Interruption:
        pass
    return _untouched("model-untouched-after-error", pair, before, reference)


def _untouched(name: str, pair: Loaded, before: dict[str, int], reference: Any) -> Check:
    same_parts = _identity(pair) == before and rotary_is_original(pair.target) and rotary_is_original(pair.draft)
    same_logits = np.array_equal(_dense_logits(pair), reference)
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
        name = rotary_name(model)
        for index, module in enumerate(attention_modules(model)):
            parts[f"{label}.{index}.{name}"] = id(getattr(module, name))
    return parts


def _dense_logits(pair: Loaded) -> Any:
    with dense.prefill(_models(pair), _request(pair, ArmKind.DENSE)) as prefilled:
        return np.array(prefilled.logits.astype(mx.float32))


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
    return _short(cache[0].keys.dtype)


def _dtype_of_weights(model: nn.Module) -> str:
    return _short(tree_flatten(model.parameters())[0][1].dtype)


def _short(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]
