"""What the system tells of its own state: heat, power, memory. Read just before and just after a trial, never during.

One small interface for all systems: `read_sensors` asks the module of the system it runs on. Every sensor is optional.
"""

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Sensors:
    """One reading. None: this system does not tell, or its command failed; nothing is concluded from it."""

    thermal_pressure: str | None = None
    """`nominal`, or how much heat slows the machine: `moderate`, `heavy`, `trapping`, `sleeping`, `limited`."""
    throttle_events: int | None = None
    """How often the processor was slowed for heat since it was started."""
    memory_pressure: str | None = None
    """`normal`, `warning` or `critical`, as the system itself calls it."""
    vm_swap_out_bytes: int | None = None
    """Written to swap since the system was started, where psutil counts something else (macOS: file pages too)."""
    compressed_bytes: int | None = None
    """Of memory that holds compressed pages."""
    low_power: bool | None = None
    """Whether the user has asked for a slower machine that lasts longer."""


def read_sensors() -> Sensors:
    """Everything that this system tells; never fails."""
    if sys.platform == "darwin":
        from specprefill_repro.trials import macos

        return macos.read_sensors()
    if sys.platform.startswith("linux"):
        from specprefill_repro.trials import linux

        return linux.read_sensors()
    return Sensors()
