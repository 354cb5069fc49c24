"""Numbers as a reader should see them: never more digits than the measurement warrants, always with their unit."""

import math

from specprefill_repro.estimates.schema import Interval

SPACE = "\u00a0"
NONE = "\u2013"
TIMES = "\u00d7"


def significant(value: float | None, digits: int = 3) -> str:
    """Such as 12.3, 0.0123 or 12,300; no exponent."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    decimals = digits - 1 - exponent
    return f"{round(value, decimals):,.{max(decimals, 0)}f}"


def seconds(value: float | None) -> str:
    return NONE if value is None else f"{significant(value)}{SPACE}s"


def percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.0f}{SPACE}%"


def count(value: int) -> str:
    return f"{value:,}"


def keep(rate: float) -> str:
    return f"{rate:g}"


def size(value: int) -> str:
    """Bytes as MiB or GiB."""
    if value < 1 << 20:
        return f"{value:,}{SPACE}B"
    return f"{significant(value / 2**20)}{SPACE}MiB" if value < 1 << 30 else f"{significant(value / 2**30)}{SPACE}GiB"


def _decimals(interval: Interval | None) -> int:
    """Decimals of a ratio: the last digit shown is the first one of the interval's half-width.

    One more where a bound would else be shown as 1 although it is not, since 1 means no difference.
    """
    if interval is None:
        return 2
    half = (interval.high - interval.low) / 2
    decimals = 3 if half <= 0 else min(max(-math.floor(math.log10(half)), 0), 3)
    while decimals < 3 and any(round(x, decimals) == 1 != round(x, 3) for x in (interval.low, interval.high)):
        decimals += 1
    return decimals


def ratio(value: float | None, interval: Interval | None = None) -> str:
    """A speed-up, such as 1.92 with the sign of multiplication."""
    return NONE if value is None else f"{value:.{_decimals(interval)}f}{TIMES}"


def bounds(interval: Interval | None) -> str:
    """An interval of a ratio, such as 1.83 to 2.01."""
    if interval is None:
        return NONE
    decimals = _decimals(interval)
    return f"{interval.low:.{decimals}f} to {interval.high:.{decimals}f}"


def share_bounds(interval: Interval | None) -> str:
    """An interval of a share, such as 0 to 41 %."""
    return NONE if interval is None else f"{100 * interval.low:.0f} to {100 * interval.high:.0f}{SPACE}%"


def with_unit(value: float | None, unit: str, interval: Interval | None = None) -> str:
    """A value in the unit of a claim card; `x` is a ratio and `share` a share."""
    if value is None:
        return NONE
    if unit == "x":
        return ratio(value, interval) if interval else f"{value:.2f}{TIMES}"
    return percent(value) if unit == "share" else f"{significant(value)}{SPACE}{unit}"
