"""Everything that is only for macOS: keeping it awake, and what its commands tell of heat, power, memory and kernels.

A command that is missing, too slow, or prints something else than foreseen gives None, never an error. Commands are
named by their full path, run with a time limit, and asked just before and just after a trial, never during it. No
serial number is read: of a report that holds one, only the field that is wanted is taken.
"""

import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specprefill_repro.files import sha256_file
from specprefill_repro.trials.schema import NOMINAL
from specprefill_repro.trials.sensors import Sensors

LIMIT_SECONDS = 2.0
"""For one command that tells a state."""
PATIENT_SECONDS = 15.0
"""For what is not asked around a trial: system_profiler looks at all hardware, and a machine must always know its chip.
"""
MAX_OUTPUT = 1_000_000

Ask = Callable[[tuple[str, ...]], str | None]
"""A command to what it prints; None when it could not be had."""

CAFFEINATE = "/usr/bin/caffeinate"
HEAT = ("/usr/bin/notifyutil", "-g", "com.apple.system.thermalpressurelevel")
HEAT_LIMITS = ("/usr/bin/pmset", "-g", "therm")
POWER = ("/usr/bin/pmset", "-g")
POWER_SOURCE = ("/usr/bin/pmset", "-g", "ps")
PRESSURE = ("/usr/sbin/sysctl", "-n", "kern.memorystatus_vm_pressure_level")
SWAP = ("/usr/sbin/sysctl", "-n", "vm.swapusage")
VM = ("/usr/bin/vm_stat",)
WIRED = ("/usr/sbin/sysctl", "-n", "iogpu.wired_limit_mb")
CHIP = ("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")
VERSION = ("/usr/bin/sw_vers",)
DISPLAYS = ("/usr/sbin/system_profiler", "SPDisplaysDataType", "-json")

THERMAL_LEVELS = (NOMINAL, "moderate", "heavy", "trapping", "sleeping")
"""OSThermalPressureLevel of macOS, from 0 (libkern/OSThermalNotification.h)."""
MEMORY_LEVELS = {1: "normal", 2: "warning", 4: "critical"}
"""DISPATCH_MEMORYPRESSURE_* (dispatch/source.h), which the sysctl gives."""
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def ask(command: tuple[str, ...]) -> str | None:
    """What a command prints, at most 1 MB of it; None when it is missing, fails, or takes too long."""
    try:
        # With close_fds the interpreter, gigabytes large by now, would be forked; without, it is spawned.
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=PATIENT_SECONDS if command in (CHIP, DISPLAYS) else LIMIT_SECONDS,
            check=True,
            close_fds=False,
            env={"LC_ALL": "C", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout[:MAX_OUTPUT].decode(errors="replace")


def read_sensors(ask: Ask = ask) -> Sensors:
    """One reading of heat, power and memory; about 0.1 s."""
    memory = vm_statistics(ask(VM))
    return Sensors(
        thermal_pressure=thermal_pressure(ask(HEAT)) or thermal_limits(ask(HEAT_LIMITS)),
        memory_pressure=memory_pressure(ask(PRESSURE)),
        vm_swap_out_bytes=memory.get("swapouts"),
        compressed_bytes=memory.get("pages occupied by compressor"),
        low_power=low_power(ask(POWER)),
    )


def machine_facts(ask: Ask = ask) -> dict[str, str]:
    """What stays the same and is worth recording: build of the system, GPU cores, wired limit, kernels of MLX."""
    found = {
        "macos": system_version(ask(VERSION)),
        "gpu_cores": gpu_cores(ask(DISPLAYS)),
        "wired_limit_mib": wired_limit(ask(WIRED)),
        "metallib_sha256": metallib_sha256(),
    }
    return {name: str(value) for name, value in found.items() if value is not None}


@contextmanager
def kept_awake(process: int) -> Iterator[None]:
    """Keep a Mac from sleeping as long as `process` lives, whatever becomes of this one; elsewhere do nothing.

    Not for its speed: a machine that sleeps during a trial voids it.
    """
    if sys.platform != "darwin":
        yield
        return
    try:
        awake = subprocess.Popen(
            caffeinate_command(process),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        yield
        return
    try:
        yield
    finally:
        awake.terminate()
        awake.wait()


def caffeinate_command(process: int) -> tuple[str, ...]:
    """Prevents sleep of display, idle system, disk and system on mains power, until the process has ended."""
    return (CAFFEINATE, "-dims", "-w", str(process))


def thermal_pressure(text: str | None) -> str | None:
    """Of `notifyutil -g com.apple.system.thermalpressurelevel`: its name and a number."""
    level = re.fullmatch(r"com\.apple\.system\.thermalpressurelevel\s+(\d+)", (text or "").strip())
    number = int(level[1]) if level else len(THERMAL_LEVELS)
    return THERMAL_LEVELS[number] if number < len(THERMAL_LEVELS) else None


def thermal_limits(text: str | None) -> str | None:
    """Of `pmset -g therm`: `nominal`, or `limited` where a limit is below 100 % or a warning level was recorded."""
    if not text:
        return None
    limits = dict(re.findall(r"(CPU_Speed_Limit|CPU_Scheduler_Limit)\s*=\s*(\d+)", text))
    level = re.search(r"[Tt]hermal [Ww]arning [Ll]evel\D*?(?:=|to|is)\s*(\d+)", text)
    if any(int(value) < 100 for value in limits.values()) or (level and int(level[1]) > 0):
        return "limited"
    return NOMINAL if limits or level or "No thermal warning level has been recorded" in text else None


def low_power(text: str | None) -> bool | None:
    """Of `pmset -g`: the low-power mode, by either of the two names that Macs have for it."""
    modes = re.findall(r"^\s*(?:lowpowermode|powermode)\s+(\d+)\s*$", text or "", re.MULTILINE)
    return any(mode == "1" for mode in modes) if modes else None


def on_battery(text: str | None) -> bool | None:
    """Of `pmset -g ps`: whether the machine runs on its battery."""
    source = re.search(r"Now drawing from '([^']*)'", text or "")
    return source[1] == "Battery Power" if source else None


def memory_pressure(text: str | None) -> str | None:
    """Of `sysctl -n kern.memorystatus_vm_pressure_level`: 1, 2 or 4."""
    level = (text or "").strip()
    return MEMORY_LEVELS.get(int(level)) if level.isdecimal() else None


def swap_used(text: str | None) -> int | None:
    """Bytes, of `sysctl -n vm.swapusage`."""
    used = re.search(r"used = (\d+(?:[.,]\d+)?)([KMGT])", text or "")
    return int(float(used[1].replace(",", ".")) * UNITS[used[2]]) if used else None


def vm_statistics(text: str | None) -> dict[str, int]:
    """Bytes by name in lower case, of `vm_stat`, which counts in pages; empty when the size of a page is missing."""
    size = re.search(r"page size of (\d+) bytes", text or "")
    if size is None:
        return {}
    rows = re.findall(r'^"?([A-Z][^:"\n]*)"?:\s+(\d+)\.?\s*$', text or "", re.MULTILINE)
    return {name.lower(): int(pages) * int(size[1]) for name, pages in rows}


def wired_limit(text: str | None) -> int | None:
    """MiB that the GPU may hold at once, of `sysctl -n iogpu.wired_limit_mb`; 0: the system's own, about 3/4."""
    limit = (text or "").strip()
    return int(limit) if limit.isdecimal() else None


def gpu_cores(text: str | None) -> int | None:
    """Of `system_profiler SPDisplaysDataType -json`: the cores of the first GPU that has any. Nothing else is kept."""
    try:
        devices = json.loads(text or "")["SPDisplaysDataType"]
        cores = [str(device["sppci_cores"]) for device in devices if "sppci_cores" in device]
    except (ValueError, KeyError, TypeError):
        return None
    return int(cores[0]) if cores and cores[0].isdecimal() else None


def system_version(text: str | None) -> str | None:
    """Such as `15.5 (24F74)`, of `sw_vers`."""
    rows = dict(re.findall(r"^(\w+):\s+(\S.*?)\s*$", text or "", re.MULTILINE))
    version, build = rows.get("ProductVersion"), rows.get("BuildVersion")
    return f"{version} ({build})" if version and build else version


def metallib_sha256() -> str | None:
    """Of the compiled kernels that MLX loads: two builds of one version of MLX may differ in nothing else."""
    path = metallib()
    try:
        return None if path is None else sha256_file(path)
    except OSError:
        return None


def metallib() -> Path | None:
    """The file with the compiled kernels; None where MLX has none."""
    for name in ("mlx-metal", "mlx"):
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            path = Path(str(file.locate()))
            if file.name == "mlx.metallib" and path.is_file():
                return path
    return None
