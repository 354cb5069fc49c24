"""What reading less cost: answers by kind of prompt, agreement, and perplexity, each paired with dense prefill."""

import math
from collections.abc import Sequence
from statistics import mean

from scipy import stats

from specprefill_repro.estimates.schema import Interval, KindQuality, PairEstimate, Quality
from specprefill_repro.estimates.statistics import interval, share_interval

LEVEL = 0.95


def quality_of(pairs: Sequence[PairEstimate]) -> Quality:
    """Sum up the pairs of a cell."""
    if not pairs:
        return Quality()
    same = [pair.same_first_token for pair in pairs if pair.same_first_token is not None]
    divergences = [pair.kl_nats for pair in pairs if pair.kl_nats is not None]
    nats = [(p.dense_nats, p.treated_nats) for p in pairs if p.dense_nats is not None and p.treated_nats is not None]
    more = [treated - dense for dense, treated in nats]
    return Quality(
        kinds=tuple(_kind([pair for pair in pairs if pair.kind is kind]) for kind in _kinds(pairs)),
        agreement_interval95=share_interval(sum(same), len(same), LEVEL),
        kl_interval95=median_interval(divergences, LEVEL),
        perplexity_pairs=len(nats),
        dense_perplexity=math.exp(mean(dense for dense, _ in nats)) if nats else None,
        treated_perplexity=math.exp(mean(treated for _, treated in nats)) if nats else None,
        perplexity_ratio=math.exp(mean(more)) if nats else None,
        perplexity_interval95=interval(more, LEVEL),
    )


def _kinds(pairs: Sequence[PairEstimate]) -> list[object]:
    return list(dict.fromkeys(pair.kind for pair in pairs))


def _kind(pairs: Sequence[PairEstimate]) -> KindQuality:
    lost = sum(pair.dense_answer_found and not pair.treated_answer_found for pair in pairs)
    gained = sum(pair.treated_answer_found and not pair.dense_answer_found for pair in pairs)
    return KindQuality(
        kind=pairs[0].kind,
        pairs=len(pairs),
        dense=sum(pair.dense_answer_found for pair in pairs),
        treated=sum(pair.treated_answer_found for pair in pairs),
        lost=lost,
        gained=gained,
        difference_interval95=paired_difference_interval(lost, gained, len(pairs), LEVEL),
        parts=sum(pair.parts for pair in pairs),
        dense_parts=sum(pair.dense_parts for pair in pairs),
        treated_parts=sum(pair.treated_parts for pair in pairs),
    )


def paired_difference_interval(lost: int, gained: int, total: int, level: float) -> Interval | None:
    """Interval of the difference of two shares counted on the same prompts, (gained - lost) / total in the sample.

    Adjusted Wald interval of Bonett and Price 2012: one loss and one gain are added to the counts, so that it does not
    shrink to nothing when none was seen. None when nothing was counted.
    """
    if total == 0:
        return None
    up, down = (gained + 1) / (total + 2), (lost + 1) / (total + 2)
    half = float(stats.norm.ppf((1 + level) / 2)) * math.sqrt((up + down - (up - down) ** 2) / (total + 2))
    return Interval(low=max(-1.0, up - down - half), high=min(1.0, up - down + half), level=level)


def median_interval(values: Sequence[float], level: float) -> Interval | None:
    """Interval of the median from the order of the values alone; None when there are too few for that level."""
    if len(values) < 2:
        return None
    found = stats.quantile_test(values, q=0.0, p=0.5).confidence_interval(level)
    if not (math.isfinite(found.low) and math.isfinite(found.high)):
        return None
    return Interval(low=float(found.low), high=float(found.high), level=level)
