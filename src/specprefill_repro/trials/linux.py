"""Everything that only Linux tells of heat and power. A file that is missing or strange gives None, never an error."""

from pathlib import Path

from specprefill_repro.trials.sensors import Sensors

CPUS = Path("/sys/devices/system/cpu")
COUNTERS = ("core_throttle_count", "package_throttle_count")


def read_sensors(cpus: Path = CPUS) -> Sensors:
    """What Linux tells; swapping is counted by psutil."""
    return Sensors(throttle_events=throttle_events(cpus))


def throttle_events(cpus: Path = CPUS) -> int | None:
    """How often heat slowed any processor since the system was started (x86); None where nothing counts it.

    Source: Documentation/arch/x86/x86_64/machinecheck and the kernel's therm_throt driver.
    """
    counts = [
        number
        for counter in COUNTERS
        for file in sorted(cpus.glob(f"cpu[0-9]*/thermal_throttle/{counter}"))
        if (number := _integer(file)) is not None
    ]
    return sum(counts) if counts else None


def governor(cpus: Path = CPUS) -> str | None:
    """Who sets the clock rates, such as `performance (intel_pstate)`; several where cores differ."""
    found = set()
    for folder in cpus.glob("cpu[0-9]*/cpufreq"):
        name, driver = _text(folder / "scaling_governor"), _text(folder / "scaling_driver")
        if name:
            found.add(f"{name} ({driver})" if driver else name)
    return ", ".join(sorted(found)) or None


def _integer(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text and text.isdecimal() else None


def _text(file: Path) -> str | None:
    try:
        with file.open("rb") as opened:
            return opened.read(200).decode(errors="replace").strip()
    except OSError:
        return None
