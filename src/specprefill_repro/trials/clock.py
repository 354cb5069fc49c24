"""Clocks. Trials are timed with `time.perf_counter`; here is what tells that the machine slept meanwhile."""

import sys
import time


def suspension_clocks() -> tuple[float, float]:
    """Two monotonic clocks in seconds, of which the second stops while the machine is suspended.

    Linux: CLOCK_BOOTTIME and CLOCK_MONOTONIC. macOS: CLOCK_MONOTONIC_RAW and CLOCK_UPTIME_RAW.
    """
    if sys.platform == "darwin":
        return time.clock_gettime(time.CLOCK_MONOTONIC_RAW), time.clock_gettime(time.CLOCK_UPTIME_RAW)
    return time.clock_gettime(time.CLOCK_BOOTTIME), time.clock_gettime(time.CLOCK_MONOTONIC)


def suspended_between(before: tuple[float, float], after: tuple[float, float]) -> float:
    """Seconds that the machine was suspended between two readings; never negative."""
    return max(0.0, (after[0] - before[0]) - (after[1] - before[1]))
