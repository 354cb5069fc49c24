"""Checks that what is kept follows from the draft's own attention."""

from dataclasses import replace
from typing import Any

import numpy as np

from specprefill_repro.gate.kernel import kernel_calls, kernel_scores
from specprefill_repro.gate.oracle import LlamaOracle, oracle_scores, why_not_covered
from specprefill_repro.gate.pair import STEP, Finding, Loaded, Run, prefill, request, run, short
from specprefill_repro.prefill.chunked import key_caches, new_cache, next_logits, read_prompt
from specprefill_repro.prefill.look_ahead import look_ahead
from specprefill_repro.prefill.scoring import token_scores
from specprefill_repro.study.plan import ArmKind

ROUNDING = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2}
"""Of the largest score: what the same queries and keys may give in another order of summation."""
SCORES = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
"""Of the largest score: what another way of computing the draft may give. Several times what rounding makes, and less
than the faults do that tests/unit/test_gate.py plants."""


def scores_equal_oracle(pair: Loaded) -> Finding:
    """Scores from captured queries and keys against an independent forward pass of the draft."""
    ours, decoded, tolerance = _scores(pair)
    oracle = LlamaOracle(pair.draft_folder).forward(
        [*pair.ids, *decoded], range(len(pair.ids) + len(decoded)), last_only=True
    )
    theirs = oracle_scores(oracle, len(pair.ids), pair.selection.pool)
    difference = float(np.abs(ours - theirs).max() / theirs.max())
    return Finding(
        passed=difference <= tolerance,
        measured=f"largest difference {difference:.2g} of the largest score, {len(decoded) + 1} queries",
        required=f"at most {tolerance:.2g}: the draft's own queries and keys, pooled as in the paper's code",
    )


def scores_equal_kernel(pair: Loaded) -> Finding:
    """In place of the oracle: scores from what the attention kernel was given."""
    ours, decoded, tolerance = _scores(pair)
    theirs, wrong = _reference(pair, pair.ids, decoded)
    difference = float(np.abs(ours - theirs).max() / theirs.max())
    return Finding(
        passed=difference <= tolerance and wrong <= tolerance,
        measured=f"largest difference {difference:.2g} of the largest score, {len(decoded) + 1} queries; attention "
        f"recomputed from them within {wrong:.2g}; in place of the NumPy oracle ({why_not_covered(pair.draft_folder)})",
        required=f"at most {tolerance:.2g}: the draft's own queries and keys, pooled as in the paper's code",
    )


def selection_follows_scores(pair: Loaded) -> Finding:
    """No dropped chunk scores better than a kept one, on two prompts, one of them the other backwards.

    The second prompt shows a selection that is remembered instead of made.
    """
    found: list[float] = []
    for name, ids in (("speculative", pair.ids), ("speculative backwards", pair.ids[::-1])):
        if name not in pair.runs:
            pair.runs[name] = prefill(pair, request(pair, ArmKind.SPECULATIVE, ids=ids))
        found.append(_margin(pair, ids, pair.runs[name]))
    by_chance = _overlap(run(pair, "speculative").kept, run(pair, "random").kept)
    tolerance = ROUNDING[_dtype(pair)]
    return Finding(
        passed=all(margin >= -tolerance for margin in found),
        measured=f"the weakest kept chunk beats the best dropped one by {found[0]:.2g} and {found[1]:.2g} of the "
        f"largest score on two prompts; overlap with a random selection {by_chance:.0%}",
        required=f"at least -{tolerance:.2g} (rounding)",
    )


def same_selection_again(pair: Loaded) -> Finding:
    """Also with each of the study's rules that draw the draft's tokens by chance."""
    twice = {"": (run(pair, "speculative"), run(pair, "speculative again"))}
    for rule in pair.sampling:
        asked = request(pair, ArmKind.SPECULATIVE)
        asked = replace(asked, arm=asked.arm.model_copy(update={"selection": rule}))
        twice[f" (rule {rule.preset or rule.label})"] = (prefill(pair, asked), prefill(pair, asked))
    told = [
        f"{_overlap(first.kept, again.kept):.0%} of the kept tokens are the same, the draft decoded "
        f"{'the same' if first.look_ahead == again.look_ahead else 'other'} tokens{name}"
        for name, (first, again) in twice.items()
    ]
    return Finding(
        passed=all(a.kept == b.kept and a.look_ahead == b.look_ahead for a, b in twice.values()),
        measured="; ".join(told),
        required="all of them, both times",
    )


def _scores(pair: Loaded) -> tuple[Any, list[int], float]:
    """The engine's scores of the gate's prompt, (prompt tokens,); the tokens the draft decoded; and the tolerance."""
    cache = new_cache(pair.draft)
    layers, decoded = look_ahead(pair.draft, pair.ids, cache, STEP, pair.selection.look_ahead, pair.draft_end_tokens)
    tolerance = SCORES[short(key_caches(cache)[0].keys.dtype)]
    return np.array(token_scores(layers, pair.selection.pool), dtype=np.float64), decoded, tolerance


def _reference(pair: Loaded, ids: tuple[int, ...], decoded: list[int]) -> tuple[Any, float]:
    """As `kernel_scores`, of a prompt that the untouched draft reads again, with the tokens it is known to decode.

    The last prompt token has a pass of its own here.
    """
    cache = new_cache(pair.draft)
    read_prompt(pair.draft, ids[:-1], cache, STEP)
    passes = []
    for token in (ids[-1], *decoded):
        with kernel_calls() as calls:
            next_logits(pair.draft, token, cache)
        passes.append(calls)
    return kernel_scores(passes, len(ids), pair.selection.pool)


def _margin(pair: Loaded, ids: tuple[int, ...], ran: Run) -> float:
    """Mean score of the worst kept chunk above that of the best dropped one, as a share of the largest score."""
    scores, _ = _reference(pair, ids, ran.look_ahead)
    rule, kept = pair.selection, set(ran.kept)
    middle = range(rule.head, len(ids) - rule.tail)
    chunks = [list(middle[start : start + rule.chunk]) for start in range(0, len(middle), rule.chunk)]
    inside = [scores[chunk].mean() for chunk in chunks if kept.issuperset(chunk)]
    outside = [scores[chunk].mean() for chunk in chunks if not kept.issuperset(chunk)]
    return float((min(inside) - max(outside)) / scores.max())


def _overlap(some: list[int], others: list[int]) -> float:
    """Shared share of both together (Jaccard)."""
    return len({*some} & {*others}) / len({*some} | {*others})


def _dtype(pair: Loaded) -> str:
    return next(iter(run(pair, "dense").types["keys"].split()))
