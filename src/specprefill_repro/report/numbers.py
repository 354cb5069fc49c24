"""Numbers as a reader should see them: never more digits than the measurement warrants, always with their unit."""

from specprefill_repro.estimates.schema import Interval
from specprefill_repro.estimates.statistics import MIN_PAIRS

SPACE = "\u00a0"
NONE = "\u2013"
TOO_FEW = "too few pairs"
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


def two_digits(value: float | None) -> str:
    """As `significant`, of what is known no better."""
    return significant(value, 2)


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


def _ratio(value: float) -> str:
    """Three significant digits; more where it would else be shown as 1, which means no difference."""
    digits = 3
    while digits < 6 and float(significant(value, digits).replace(",", "")) == 1 != round(value, 5):
        digits += 1
    return significant(value, digits)


def ratio(value: float | None) -> str:
    """A speed-up, such as 1.92 with the sign of multiplication."""
    return NONE if value is None else f"{_ratio(value)}{TIMES}"


def bounds(interval: Interval | None) -> str:
    """An interval of a ratio, such as 1.83 to 2.01; the end of one of a ratio is never 0."""
    return NONE if interval is None else f"{_ratio(interval.low)} to {_ratio(interval.high)}"


def bounds_of(interval: Interval | None, pairs: int) -> str:
    """An interval of a ratio from so many pairs; of fewer than a verdict needs it says nothing."""
    return TOO_FEW if 0 < pairs < MIN_PAIRS else bounds(interval)


def share_bounds(interval: Interval | None) -> str:
    """An interval of a share, such as 0 to 41 %."""
    return NONE if interval is None else f"{100 * interval.low:.0f} to {100 * interval.high:.0f}{SPACE}%"


def with_unit(value: float | None, unit: str) -> str:
    """A value in the unit of a claim card; `x` is a ratio and `share` a share."""
    if value is None:
        return NONE
    if unit == "x":
        return ratio(value)
    return percent(value) if unit == "share" else f"{significant(value)}{SPACE}{unit}"
