"""Checks that every token is read at its own position."""

import random
from typing import Any

import mlx.core as mx
import numpy as np

from specprefill_repro.gate.one_by_one import read_one_by_one
from specprefill_repro.gate.oracle import LlamaOracle, layers_within_reach, why_not_covered
from specprefill_repro.gate.pair import (
    DECODED,
    STEP,
    TOLERANCE,
    Finding,
    Loaded,
    compare,
    dtype_of_weights,
    request,
    run,
)
from specprefill_repro.prefill import speculative
from specprefill_repro.prefill.architectures import structure
from specprefill_repro.prefill.arms import Request
from specprefill_repro.prefill.chunked import most_likely, new_cache
from specprefill_repro.prefill.look_ahead import Attention, captured_calls
from specprefill_repro.prefill.positions import PositionedModel, check_vector_offsets
from specprefill_repro.prefill.sparse import prefill_kept
from specprefill_repro.study.plan import ArmKind


def vector_offsets(pair: Loaded) -> Finding:
    difference = max(check_vector_offsets(pair.target), check_vector_offsets(pair.draft))
    return Finding(
        passed=True,
        measured=f"largest difference {difference:.3g}",
        required="a vector of positions rotates as single positions do",
    )


def keep_1_equals_dense(pair: Loaded) -> Finding:
    reference = run(pair, "dense").logits
    with speculative.prefill(pair.models, request(pair, ArmKind.SPECULATIVE, keep=1.0)) as prefilled:
        found = np.array(prefilled.logits.astype(mx.float32))
        kept = len(prefilled.kept)
    return compare(found, reference, pair, f"{kept} of {len(pair.ids)} tokens kept")


def gapped_selection_equals_oracle(pair: Loaded) -> Finding:
    """Logits at positions with gaps, decoding included, against NumPy's."""
    found, ids, positions = _read_kept(pair, pair.ids, pair.kept)
    expected = LlamaOracle(pair.target_folder).forward(ids, positions, last_only=False).logits[-1 - DECODED :]
    return compare(found, expected, pair, _gapped(pair, ""))


def first_layers_equal_oracle(pair: Loaded) -> Finding:
    """Of a model that is too large to be computed in NumPy: queries and keys of its first layers, with gaps.

    Those of a layer depend on everything before it, its predecessors' attention included. The model itself, one token
    at a time, then vouches for the other layers (gapped-equals-one-by-one), which are built like these.
    """
    layers = layers_within_reach(pair.target_folder)
    ids = [pair.ids[position] for position in pair.kept]
    expected = LlamaOracle(pair.target_folder).forward(ids, pair.kept, layers=layers)
    calls = _calls_of_kept(pair)[:layers]
    differences = [
        float(np.abs(np.array(found.astype(mx.float32)) - theirs).max() / np.abs(theirs).max())
        for call, queries, keys in zip(calls, expected.queries, expected.keys, strict=True)
        for found, theirs in ((call.queries[0], queries), (call.keys[0], keys))
    ]
    largest, tolerance = float(np.max(differences)), TOLERANCE[dtype_of_weights(pair.target)]
    return Finding(
        passed=len(differences) == 2 * layers and largest <= tolerance,
        measured=f"queries and keys of {layers} layers of {len(structure(pair.target).attention)}, {len(ids)} tokens "
        f"kept of {len(pair.ids)}; largest difference {largest:.2g} of the largest",
        required=f"at most {tolerance:.2g}",
    )


def gapped_equals_one_by_one(pair: Loaded) -> Finding:
    """In place of the oracle: the untouched model, one token at a time, told each token's position by its cache."""
    found, ids, positions = _read_kept(pair, pair.ids, pair.kept)
    expected = read_one_by_one(pair.target, ids, positions, last=1 + DECODED).logits
    reason = f", in place of the NumPy oracle ({why_not_covered(pair.target_folder)})"
    return compare(found, expected, pair, _gapped(pair, reason))


def windows_count_positions(pair: Loaded) -> Finding:
    windows = sorted({layer.window for layer in structure(pair.target).attention if layer.window is not None})
    # Some tokens of every half window, over three of the longest: far fewer kept tokens than positions.
    starts = sorted({window * half // 2 for window in windows for half in range(7)})
    length = max(2, min(16, windows[0] // 12))
    kept = sorted({start + offset for start in starts for offset in range(length)})
    rng = random.Random("windows")
    prompt = [rng.randrange(pair.target_manifest.vocabulary) for _ in range(kept[-1] + 1)]
    found, ids, positions = _read_kept(pair, tuple(prompt), tuple(kept))
    expected = read_one_by_one(pair.target, ids, positions, last=1 + DECODED).logits
    what = f"windows of {', '.join(map(str, windows))}, {len(kept)} tokens kept of {len(prompt)}"
    return compare(found, expected, pair, what)


def keys_equal_dense(pair: Loaded) -> Finding:
    """In the first layer a key depends on its token and position alone: kept keys must equal dense ones."""
    with captured_calls(pair.target) as calls:
        pair.target(mx.array([pair.ids]), cache=new_cache(pair.target))
        full = calls[0].keys[0][:, mx.array(pair.kept)].astype(mx.float32)
    return _compare_keys(pair, np.array(full))


def keys_equal_one_by_one(pair: Loaded) -> Finding:
    """In place of dense keys, for a model that begins with recurrent layers: the untouched model's, token by token."""
    ids = [pair.ids[position] for position in pair.kept]
    return _compare_keys(pair, np.array(read_one_by_one(pair.target, ids, pair.kept, last=1).keys))


def _compare_keys(pair: Loaded, expected: Any) -> Finding:
    found = np.array(_calls_of_kept(pair)[0].keys[0].astype(mx.float32))
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    tolerance = TOLERANCE[dtype_of_weights(pair.target)]
    return Finding(
        passed=difference <= tolerance,
        measured=f"largest difference {difference:.2g} of the largest key",
        required=f"at most {tolerance:.2g}: kept tokens keep their original positions",
    )


def _calls_of_kept(pair: Loaded) -> list[Attention]:
    """What each attention layer computes from when the kept tokens are read in one pass."""
    model = PositionedModel(pair.target, len(pair.ids))
    model.positions.set(list(pair.kept))
    with captured_calls(pair.target) as calls:
        model(mx.array([[pair.ids[position] for position in pair.kept]]), cache=new_cache(model))
        return list(calls)


def _read_kept(pair: Loaded, prompt: tuple[int, ...], kept: tuple[int, ...]) -> tuple[Any, list[int], list[int]]:
    """Logits of the last kept token and of the tokens decoded after it; all ids that were read, and their positions."""
    found: list[Any] = []
    asked = Request(ids=prompt, arm=request(pair, ArmKind.RANDOM).arm, step=STEP, seed="gate")
    with prefill_kept(pair.models, asked, kept, []) as prefilled:
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
