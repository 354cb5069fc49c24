"""What SpecPrefill can give on a machine, from the cost of its parts alone.

    T(N) = a*N + b*N^2                           a dense prefill of N tokens, up to the first token
    dense(L)   = T_target(L)
    treated(L) = T_draft(L) + (passes - 1) * step_draft + T_target(kept)

passes is the number of look-ahead passes, the last prompt token's included; kept is what the selection rule leaves of L
tokens: head, tail, and the chunks of the budget. *Bound* leaves out all
that an implementation could in principle do better: look-ahead, and the tokens of head and tail,

    bound(L) = T_target(L) / (T_draft(L) + T_target(keep * L))

so no implementation of this pair at this keep rate is faster. Model: arXiv 2502.02789, with seconds for operations and
with the quadratic term of attention.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from specprefill_repro.estimates.prediction import DenseTimes, PrefillCost, fit_cost
from specprefill_repro.prefill.selection import budget
from specprefill_repro.study.schema import Selection

REACH = 8
"""A fit says nothing about prompts more than this many times as long as the longest that it was made from."""
SHORTEST = 128
GROWTH = 1.02
"""Lengths that are tried for the break-even grow by this factor."""


@dataclass(frozen=True)
class ModelCost:
    """Of one model on one machine: its prefill, and one pass of one token after it, in seconds."""

    prefill: PrefillCost
    step: float

    def dense(self, tokens: int) -> float:
        return self.prefill.seconds(tokens)


def model_cost(times: Mapping[int, DenseTimes]) -> ModelCost:
    """Fit a model's cost to {tokens: medians}.

    Raises:
        ValueError: nothing to fit.
    """
    prefill = fit_cost({tokens: seen.total for tokens, seen in times.items()})
    return ModelCost(prefill, sum(seen.step for seen in times.values()) / len(times))


def kept_tokens(length: int, keep: float, rule: Selection) -> int:
    """How many tokens of a prompt the selection rule leaves; a last, shorter chunk is counted as a whole one."""
    if rule.tail_in_budget:
        chunks = -(-max(0, length - rule.head) // rule.chunk)
        return min(length, rule.head + max(budget(chunks, keep), -(-rule.tail // rule.chunk)) * rule.chunk)
    middle = max(0, length - rule.head - rule.tail)
    return min(length, length - middle + budget(-(-middle // rule.chunk), keep) * rule.chunk)


def treated_seconds(target: ModelCost, draft: ModelCost | None, length: int, keep: float, rule: Selection) -> float:
    """Predicted seconds to the first token of a treated arm; without a draft, of a random selection."""
    scoring = 0.0 if draft is None else draft.dense(length) + (rule.passes - 1) * draft.step
    return scoring + target.dense(kept_tokens(length, keep, rule))


def speedup(target: ModelCost, draft: ModelCost | None, length: int, keep: float, rule: Selection) -> float:
    """Predicted dense seconds / treated seconds."""
    return target.dense(length) / treated_seconds(target, draft, length, keep, rule)


def bound(target: PrefillCost, draft: PrefillCost | None, length: int, keep: float) -> float:
    """The speed-up that no implementation of this pair at this keep rate exceeds."""
    scoring = 0.0 if draft is None else draft.seconds(length)
    return target.seconds(length) / (scoring + target.seconds(keep * length))


def break_even(target: ModelCost, draft: ModelCost | None, keep: float, rule: Selection, longest: int) -> int | None:
    """The shortest prompt, within 2 %, from which on SpecPrefill is predicted to be faster; None: not up to `longest`.

    It is faster at that length and at all longer ones that were tried.
    """
    found, length = None, float(SHORTEST)
    while length <= longest:
        wins = speedup(target, draft, round(length), keep, rule) > 1
        found = (found or round(length)) if wins else None
        length = max(length * GROWTH, length + 1)
    return found
