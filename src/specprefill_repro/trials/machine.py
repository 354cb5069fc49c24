"""What this machine is, and what state it is in. Works without mlx."""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import psutil

from specprefill_repro.trials import macos
from specprefill_repro.trials.schema import MachineState
from specprefill_repro.trials.sensors import Sensors, read_sensors

PINNED = ("mlx", "mlx-lm", "mlx-cpu", "mlx-metal", "scipy-openblas32", "tokenizers")


@lru_cache(maxsize=1)
def machine_facts() -> dict[str, str]:
    """What identifies this kind of machine for a comparison; no serial number, host name or user name."""
    return {
        "chip": _chip(),
        "cores": str(os.cpu_count()),
        "memory_gib": f"{psutil.virtual_memory().total / 2**30:.0f}",
        "system": f"{platform.system()} {platform.machine()}",
    }


@lru_cache(maxsize=1)
def software_facts() -> dict[str, str]:
    """Versions of what computes."""
    versions = {"python": platform.python_version(), "os": _os_version()}
    for name in PINNED:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions | (macos.machine_facts() if sys.platform == "darwin" else {})


def _chip() -> str:
    if sys.platform == "darwin":
        return (macos.ask(macos.CHIP) or "").strip() or "unknown Mac"
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _os_version() -> str:
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    return f"{platform.system()} {platform.release()}"


def machine_state(listen_seconds: float = 0.1, sensors: Callable[[], Sensors] = read_sensors) -> MachineState:
    """Read the machine's state; listens `listen_seconds` for other processes' use of the CPU.

    Called just before and just after a trial, never during it.
    """
    read = sensors()
    frequency = _cpu_mhz()
    own = psutil.Process()
    own.cpu_percent()
    everything = psutil.cpu_percent(interval=listen_seconds)
    own_share = own.cpu_percent() / (os.cpu_count() or 1)
    return MachineState(
        load_1min=os.getloadavg()[0],
        swap_out_bytes=psutil.swap_memory().sout,
        available_bytes=psutil.virtual_memory().available,
        cpu_mhz=frequency,
        other_cpu_percent=max(0.0, round(everything - own_share, 1)),
        **asdict(read),
    )


def _cpu_mhz() -> float | None:
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError, RuntimeError):
        return None
    return float(frequency.current) if frequency is not None and frequency.current else None
