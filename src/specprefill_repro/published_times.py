"""How long a prefill took others, by claim cards: what a plan rests on where a model is not here to be probed."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import log

from specprefill_repro.verdicts.matching import KEEP_TOLERANCE, ModelFacts, same_model, same_text
from specprefill_repro.verdicts.schema import Claim

SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class PublishedTime:
    """A time to first token, carried over from the nearest published one in proportion to the tokens."""

    seconds: float
    card: str
    hardware: str
    tokens: int
    """Of the prompt that the figure is about."""


def published_time(
    claims: Iterable[Claim],
    tokens: int,
    hardware: str | None,
    target: ModelFacts,
    draft: ModelFacts | None = None,
    keep: float = 1.0,
) -> PublishedTime | None:
    """Of a dense prefill, or of a speculative one at a keep rate; None where nobody has published one of that target.

    The nearest card is one of this hardware, else of its maker; among those, the nearest prompt length.

    Args:
        hardware: of this machine.
    """
    found = [
        (claim, time)
        for claim in claims
        if _same_work(claim, target, draft, keep) and (time := _seconds(claim)) is not None
    ]

    def distance(item: tuple[Claim, float]) -> tuple[bool, bool, float, bool, str]:
        said = item[0].conditions
        maker = (said.hardware or "").split()[:1] == (hardware or "").split()[:1]
        same = hardware is not None and same_text(said.hardware or "", hardware)
        far = abs(log((said.prompt_tokens or 1) / tokens))
        return not same, not maker, far, item[0].metric != "ttft", item[0].id

    nearest = min(found, key=distance, default=None)
    if nearest is None:
        return None
    claim, seconds = nearest
    of = claim.conditions.prompt_tokens or tokens
    return PublishedTime(seconds * tokens / of, claim.id, claim.conditions.hardware or "unknown hardware", of)


def _same_work(claim: Claim, target: ModelFacts, draft: ModelFacts | None, keep: float) -> bool:
    said = claim.conditions
    if not said.hardware or not said.prompt_tokens or not said.target or not same_model(said.target, target.identity):
        return False
    if not _same_bits(said.target_quantization, target.quantization):
        return False
    if draft is None:
        return said.draft is None and said.keep == 1.0
    if said.draft is None or said.keep is None or abs(said.keep - keep) > KEEP_TOLERANCE:
        return False
    return same_model(said.draft, draft.identity) and _same_bits(said.draft_quantization, draft.quantization)


def _same_bits(said: str | None, here: str | None) -> bool:
    return said is None or here is None or same_text(said, here)


def _seconds(claim: Claim) -> float | None:
    """Time to first token that a card states, as such or as a rate of prefill."""
    if not claim.value or claim.value <= 0:
        return None
    if claim.metric == "ttft":
        scale = SECONDS.get(claim.unit)
        return None if scale is None else claim.value * scale
    tokens = claim.conditions.prompt_tokens
    return tokens / claim.value if claim.metric == "prefill_rate" and claim.unit == "tok/s" and tokens else None
