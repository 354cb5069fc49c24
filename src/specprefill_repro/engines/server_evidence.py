"""From what a server's log and answer say to what really ran: `sparse`, `dense`, or `fallback: REASON`.

Every engine reads its own log lines into `LogClaims`; the rule here is the same for all. A server answers 200 whatever
it did, so without proof a speculative trial is never `sparse`: the whole prompt was scored, as much was kept as was
asked for, nothing failed afterwards, keep rate and threshold are those that were requested, and nothing came from a
cache.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil

from specprefill_repro.study.plan import Arm, ArmKind

CHUNK = 32
"""Both servers keep or drop this many tokens together."""
KEEP_TOLERANCE = 0.006
"""Logs give the keep rate in whole percent."""


@dataclass(frozen=True)
class Scored:
    """One request that ran SpecPrefill, as the log tells it."""

    scored: int
    """Prompt tokens that the draft read."""
    kept: int
    """Prompt tokens that the target read."""
    total: int
    """Prompt tokens that it chose from, as the target's part of the log has them."""
    keep: float | None = None
    """Keep rate that was in effect; None: not said."""
    cached: int = 0
    """Prompt tokens of the target that came from a cache."""
    draft_cached: int = 0
    """Prompt tokens of the draft that came from a cache."""
    seconds: dict[str, float] = field(default_factory=dict)
    """What the log says that the parts took."""


@dataclass(frozen=True)
class LogClaims:
    """What the log says about the server and about one request."""

    armed: bool
    """A draft was loaded."""
    threshold: int | None = None
    """As it was loaded with; None: not said."""
    keep: float | None = None
    """As it was loaded with; None: not said."""
    scored: tuple[Scored, ...] = ()
    """One for each request that ran SpecPrefill."""
    failures: tuple[str, ...] = ()
    """Lines that say that it failed or was left out."""
    reasons: tuple[str, ...] = ()
    """Why this engine can't have run it as asked, even where the log has no failure; in words."""
    lines: tuple[str, ...] = ()
    """All lines that decide."""


def kept_bounds(total: int, keep: float, chunk: int = CHUNK) -> tuple[int, int]:
    """Fewest and most tokens that the published rule keeps: the best ceil(keep * chunks) chunks, the last one maybe
    shorter (arXiv 2502.02789 and both servers' code)."""
    chunks = ceil(total / chunk)
    wanted = min(chunks, max(1, ceil(chunks * keep)))
    last = total - (chunks - 1) * chunk
    return (wanted - 1) * chunk + last, min(total, wanted * chunk)


def outcome(
    arm: Arm, total: int, threshold: int, claims: LogClaims, cached: int | None, kept: tuple[int, int] | None = None
) -> str:
    """What one request was.

    Args:
        arm: what was asked for.
        total: tokens of the prompt, as our own tokenizer counts them.
        threshold: what was asked for; prompts of at most so many tokens run dense.
        cached: prompt tokens from a cache, by the answer's `usage`; None: it does not say.
        kept: fewest and most kept tokens that are as asked; by default those of `kept_bounds`.
    """
    if arm.kind is ArmKind.DENSE:
        if claims.armed or claims.scored:
            return "fallback: SpecPrefill was on in the dense arm"
        # Such as an answer that the server cut off.
        return f"fallback: {claims.failures[0]}" if claims.failures else "dense"
    return next(_doubts(arm.keep, total, threshold, claims, cached, kept or kept_bounds(total, arm.keep)), "sparse")


def _doubts(
    keep: float, total: int, threshold: int, claims: LogClaims, cached: int | None, bounds: tuple[int, int]
) -> Iterator[str]:
    for reason in (*claims.failures, *claims.reasons):
        yield f"fallback: {reason}"
    if not claims.armed:
        yield "fallback: the log does not say that a draft was loaded"
    if not claims.scored:
        if cached:
            yield f"fallback: {cached} prompt tokens came from a cache"
        if total <= threshold:
            yield f"fallback: {total} prompt tokens are not above the threshold of {threshold}"
        yield "fallback: the log has no line of SpecPrefill for this request"
        return
    if len(claims.scored) > 1:
        yield f"fallback: the log has {len(claims.scored)} lines of SpecPrefill for one request"
    seen = claims.scored[0]
    if seen.draft_cached:
        yield f"fallback: {seen.draft_cached} prompt tokens of the draft came from a cache"
    if seen.cached or cached:
        yield f"fallback: {seen.cached or cached} prompt tokens came from a cache"
    if seen.scored != total or seen.total != total:
        yield f"fallback: {min(seen.scored, seen.total)} of {total} prompt tokens were scored"
    for name, value in (("keep rate", seen.keep), ("keep rate", claims.keep)):
        if value is not None and abs(value - keep) > KEEP_TOLERANCE:
            yield f"fallback: the {name} was {value:g}, {keep:g} was asked for"
    if claims.threshold is not None and claims.threshold != threshold:
        yield f"fallback: the threshold was {claims.threshold}, {threshold} was asked for"
    low, high = bounds
    if not low <= seen.kept <= high:
        wanted = f"{low}" if low == high else f"{low} to {high}"
        yield f"fallback: {seen.kept} of {total} tokens were kept, {wanted} were asked for"
