"""How fast tokens come after the first one: a cache of kept tokens should be no slower to decode from."""

import math
from collections.abc import Sequence
from statistics import median

from specprefill_repro.estimates.pairing import Twins
from specprefill_repro.estimates.schema import Decoding
from specprefill_repro.estimates.statistics import interval, log_ratio, summary
from specprefill_repro.trials.schema import TrialRecord

ENOUGH_TOKENS = 32
"""Decoded after the first one, in either trial of a pair: fewer take too little time to be compared."""


def decoding(counted: Sequence[Twins]) -> Decoding | None:
    """Decode rates of a cell's pairs, dense against treated; None without pairs.

    Each pair gives one ratio of seconds a token, so that answers of different length do not matter.
    """
    if not counted:
        return None
    records = [record for twins in counted for record in (twins.dense, twins.treated)]
    long = [twins for twins in counted if min(_tokens(twins.dense), _tokens(twins.treated)) >= ENOUGH_TOKENS]
    ratios = [log_ratio(1 / _rate(twins.dense), 1 / _rate(twins.treated)) for twins in long]
    interval95 = interval(ratios, 0.95)
    return Decoding(
        fewest_tokens=min(_tokens(record) for record in records),
        most_tokens=max(_tokens(record) for record in records),
        pairs=len(long),
        dense_rate=median(_rate(twins.dense) for twins in long) if long else None,
        treated_rate=median(_rate(twins.treated) for twins in long) if long else None,
        speedup=summary(ratios).speedup if ratios else None,
        interval95=interval95,
        even_tokens=_even_tokens(long) if interval95 is not None and interval95.high < 1 else None,
    )


def _even_tokens(pairs: Sequence[Twins]) -> int | None:
    """Seconds saved until the first token, over the seconds that each token after it takes longer: medians of pairs."""
    saved = median(twins.dense.seconds - twins.treated.seconds for twins in pairs)
    longer = median(1 / _rate(twins.treated) - 1 / _rate(twins.dense) for twins in pairs)
    return math.ceil(saved / longer) if saved > 0 and longer > 0 else None


def _tokens(record: TrialRecord) -> int:
    """Zero where no time was noted."""
    return record.decode_tokens if record.decode_seconds > 0 else 0


def _rate(record: TrialRecord) -> float:
    """Tokens a second, the first one left out."""
    return record.decode_tokens / record.decode_seconds
