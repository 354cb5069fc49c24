"""What this machine is, what state it is in, and what that means for measuring on it; each with what to do."""

import fcntl
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.fitting import Fit, Room, fits, room_here, usable_memory
from specprefill_repro.project import Project
from specprefill_repro.study.scale import TINY
from specprefill_repro.this_command import this_command
from specprefill_repro.trials import linux, macos
from specprefill_repro.trials.busy import OTHER_CPU_PERCENT, is_overloaded
from specprefill_repro.trials.canary import CanaryWork, work
from specprefill_repro.trials.lease import lease_path
from specprefill_repro.trials.machine import machine_facts, machine_state
from specprefill_repro.trials.schema import NOMINAL, MachineState

LEAST_MEMORY = 3_700_000_000
"""What is sold as 4 GB, less what the system keeps to itself."""
LEAST_DISK = 4_000_000_000
"""For the environment, and the demo's models and records."""
OLDEST_MACOS = 14
SLOW_GFLOPS = 10.0
"""The reference BLAS of MLX's Linux wheel does 2 where the same core does over 100 with a fast one."""
MUCH_SWAP = 1_000_000_000
NVIDIA = Path("/proc/driver/nvidia/version")


class Grade(StrEnum):
    OK = "ok"
    LOOK = "look"
    """Measurements are possible; what they say may suffer."""
    BAD = "bad"
    """Nothing can be measured until it is put right."""


@dataclass(frozen=True)
class Finding:
    name: str
    value: str
    grade: Grade = Grade.OK
    advice: str = ""
    """What to do; empty where all is well."""


@dataclass(frozen=True)
class Condition:
    """Everything that is looked at. None: not told by this machine, or not a thing of its system."""

    system: str
    """As sys.platform names it: `linux`, `darwin`."""
    version: str
    """Of the system, such as 15.5 or 6.8.0."""
    architecture: str
    """Such as arm64 or x86_64."""
    chip: str
    cores: int
    gpu_cores: int | None
    memory_bytes: int
    usable_bytes: int
    """That one trial may use."""
    mlx: CanaryWork | None
    nvidia: bool
    metallib: str | None
    """SHA-256 of the compiled kernels."""
    wired_limit_mib: int | None
    governor: str | None
    on_battery: bool | None
    state: MachineState
    swap_used_bytes: int
    disk_bytes: int
    """Free in the project's folder."""
    measuring: str | None
    """Process id of a measurement that runs now."""


def condition_here(project: Project) -> Condition:
    """Look at this machine; takes about a second, most of it a small computation with MLX in a process of its own."""
    mac = sys.platform == "darwin"
    memory = psutil.virtual_memory().total
    return Condition(
        system=sys.platform,
        version=platform.mac_ver()[0] if mac else platform.release(),
        architecture=platform.machine(),
        chip=machine_facts()["chip"],
        cores=os.cpu_count() or 1,
        gpu_cores=macos.gpu_cores(macos.ask(macos.DISPLAYS)) if mac else None,
        memory_bytes=memory,
        usable_bytes=usable_memory(memory),
        # First the state, which the computation would change.
        state=machine_state(listen_seconds=0.5),
        mlx=work(),
        nvidia=NVIDIA.exists(),
        metallib=macos.metallib_sha256(),
        wired_limit_mib=macos.wired_limit(macos.ask(macos.WIRED)) if mac else None,
        governor=None if mac else linux.governor(),
        on_battery=macos.on_battery(macos.ask(macos.POWER_SOURCE)) if mac else _on_battery(),
        swap_used_bytes=psutil.swap_memory().used,
        disk_bytes=shutil.disk_usage(project.root).free,
        measuring=_measuring(),
    )


def _on_battery() -> bool | None:
    try:
        battery = psutil.sensors_battery()
    except (AttributeError, OSError, RuntimeError, ValueError):
        return None
    return None if battery is None or battery.power_plugged is None else not battery.power_plugged


def _measuring() -> str | None:
    """Process that holds the machine now; the lock is tried, never waited for."""
    try:
        with lease_path().open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read(20).strip() or "unknown"
    except OSError:
        pass
    return None


def findings(seen: Condition) -> list[Finding]:
    """One line a subject, in a fixed order."""
    checks: tuple[Callable[[Condition], Finding | None], ...] = (
        _chip,
        _memory,
        _system,
        _mlx,
        _kernels,
        _wired,
        _power,
        _heat,
        _swap,
        _disk,
        _load,
    )
    return [found for check in checks if (found := check(seen)) is not None]


def _chip(seen: Condition) -> Finding:
    gpu = f", {seen.gpu_cores} GPU cores" if seen.gpu_cores else ""
    return Finding("chip", f"{seen.chip}, {seen.cores} cores{gpu}")


def _memory(seen: Condition) -> Finding:
    free = seen.state.available_bytes
    value = f"{_gb(seen.memory_bytes)}, of which a trial may use {_gb(seen.usable_bytes)}; {_gb(free)} are free now"
    if seen.memory_bytes < LEAST_MEMORY:
        return Finding("memory", value, Grade.BAD, "The smallest study takes 4 GB: use a larger machine.")
    if seen.state.memory_pressure not in (None, "normal"):
        said = f"the system calls its memory pressure {seen.state.memory_pressure}"
        return Finding("memory", f"{value}; {said}", Grade.LOOK, "End other programs before you measure.")
    if free < seen.usable_bytes / 2:
        return Finding("memory", value, Grade.LOOK, "End other programs: more than half of it is in use.")
    return Finding("memory", value)


def _system(seen: Condition) -> Finding:
    if seen.system == "darwin":
        value = f"macOS {seen.version} on {seen.architecture}"
        major = seen.version.partition(".")[0]
        if seen.architecture != "arm64":
            why = "MLX computes on Apple silicon only; a Python for Intel does not see it. Install one for arm64."
            return Finding("system", value, Grade.BAD, why)
        old = major.isdecimal() and int(major) < OLDEST_MACOS
        return Finding(
            "system", value, Grade.BAD if old else Grade.OK, f"Update to macOS {OLDEST_MACOS} or newer." if old else ""
        )
    value = f"{seen.system} {seen.version} on {seen.architecture}"
    if seen.system == "linux" and seen.architecture == "x86_64":
        return Finding("system", value)
    if seen.system == "linux":
        return Finding("system", value, Grade.LOOK, "Only x86-64 was tried; run ./test first.")
    return Finding("system", value, Grade.BAD, "Use macOS on Apple silicon, or Linux.")


def _mlx(seen: Condition) -> Finding:
    if seen.mlx is None:
        return Finding("MLX", "can't be used", Grade.BAD, "Set the environment up anew: ./envs/setup")
    value = f"{seen.mlx.mlx} on {seen.mlx.device}"
    if "gpu" in seen.mlx.device.lower():
        return Finding("MLX", value)
    if seen.system == "darwin":
        return Finding("MLX", value, Grade.LOOK, "It computes on the CPU of a Mac: unset MLX_DEVICE, set up anew.")
    if seen.nvidia:
        return Finding(
            "MLX", value, Grade.LOOK, "There is an NVIDIA GPU; this MLX is built for CPUs and leaves it alone."
        )
    return Finding("MLX", f"{value}; no CUDA, no Metal")


def _kernels(seen: Condition) -> Finding | None:
    """Whether the kernels are the fast ones: by their speed on a CPU, by their file on a Mac."""
    if seen.mlx is None:
        return None
    value = f"{seen.mlx.product_gflops:,.0f} GFLOPS in a product of matrices"
    if seen.system == "darwin":
        if seen.metallib is None:
            return Finding(
                "kernels", f"{value}; no compiled Metal kernels found", Grade.LOOK, "Set up anew: ./envs/setup"
            )
        return Finding("kernels", f"{value}; Metal kernels {seen.metallib[:12]}")
    value = f"{value}, with {seen.mlx.blas}"
    if "gpu" not in seen.mlx.device.lower() and seen.mlx.product_gflops < SLOW_GFLOPS:
        advice = (
            "That is a slow BLAS, or a busy machine. Set up anew with ./envs/setup, or end other work, and look again."
        )
        return Finding("kernels", value, Grade.LOOK, advice)
    return Finding("kernels", value)


def _wired(seen: Condition) -> Finding | None:
    if seen.wired_limit_mib is None:
        return None
    if seen.wired_limit_mib == 0:
        return Finding("wired limit", f"the system's own, about {_gb(seen.usable_bytes)}")
    value = f"{seen.wired_limit_mib:,} MiB, set by hand"
    if seen.wired_limit_mib * 2**20 > 0.9 * seen.memory_bytes:
        advice = (
            "That leaves the system too little. Lower it: sudo sysctl iogpu.wired_limit_mb=N, 0 for the system's own."
        )
        return Finding("wired limit", value, Grade.LOOK, advice)
    return Finding("wired limit", value)


def _power(seen: Condition) -> Finding:
    if seen.state.low_power:
        advice = "Switch it off in System Settings, Battery, or with: sudo pmset -a lowpowermode 0"
        return Finding("power", "low-power mode is on", Grade.LOOK, advice)
    if seen.on_battery:
        return Finding("power", "on battery", Grade.LOOK, "Connect it: on battery, a machine slows down when it likes.")
    if seen.governor and "powersave (" in seen.governor and "pstate" not in seen.governor:
        advice = "All work runs at the lowest clock rate. Change it: sudo cpupower frequency-set -g performance"
        return Finding("power", f"governor {seen.governor}", Grade.LOOK, advice)
    known = [f"governor {seen.governor}"] if seen.governor else []
    known += ["low-power mode is off"] if seen.state.low_power is False else []
    known += ["on mains power"] if seen.on_battery is False else []
    return Finding("power", ", ".join(known) or "this machine does not tell")


def _heat(seen: Condition) -> Finding:
    pressure, throttled = seen.state.thermal_pressure, seen.state.throttle_events
    if pressure not in (None, NOMINAL):
        advice = "Let it cool, and give it air: trials under thermal pressure don't count."
        return Finding("heat", f"thermal pressure is {pressure}", Grade.LOOK, advice)
    if pressure is not None:
        return Finding("heat", "no thermal pressure")
    if throttled:
        advice = "A trial during which this number grows doesn't count: give the machine air."
        return Finding("heat", f"slowed {throttled:,} times for heat since it was started", Grade.LOOK, advice)
    if throttled == 0:
        return Finding("heat", "never slowed for heat since it was started")
    return Finding("heat", "this machine does not tell, so no trial can be void for heat; drift and canary show it")


def _swap(seen: Condition) -> Finding:
    value = f"{_gb(seen.swap_used_bytes)} in use"
    if seen.swap_used_bytes > MUCH_SWAP:
        return Finding("swap", value, Grade.LOOK, "End large programs or restart: trials that swap out don't count.")
    return Finding("swap", value)


def _disk(seen: Condition) -> Finding:
    value = f"{_gb(seen.disk_bytes)} free"
    if seen.disk_bytes < LEAST_DISK:
        return Finding("disk", value, Grade.BAD, f"Free some: even the demo takes {_gb(LEAST_DISK)} with its set-up.")
    return Finding("disk", value)


def _load(seen: Condition) -> Finding:
    others = seen.state.other_cpu_percent or 0.0
    value = f"load average {seen.state.load_1min:.1f} on {seen.cores} cores; other programs use {others:.0f} % now"
    if seen.measuring:
        advice = "Wait for it to end; a second one would wait too."
        return Finding("other load", f"{value}; process {seen.measuring} is measuring", Grade.LOOK, advice)
    if is_overloaded(seen.state.load_1min, seen.cores) or others > OTHER_CPU_PERCENT:
        return Finding("other load", value, Grade.LOOK, "End other work, or measure later: times taken now say little.")
    return Finding("other load", value)


def study_lines(found: list[Fit]) -> list[str]:
    """Which of the shipped studies this machine can hold, and what to run instead of the others."""
    fitting = [fit for fit in found if fit.fits]
    lines = [f"Of {len(found)} studies this machine can hold {len(fitting)}:"]
    lines += [f"  fits          {fit.study}, {_gb(fit.needs.memory_bytes)} of memory" for fit in fitting]
    for fit in found:
        if not fit.fits:
            lines.append(f"  does not fit  {fit.study}: {'; '.join(fit.lacking)}")
    if fitting:
        lines.append("Run one:          ./reproduce STUDY   (all that fit: ./reproduce --all-that-fit)")
    if len(fitting) < len(found):
        lines.append(f"Of the others:    ./reproduce STUDY --scale {TINY}   (the same on small random models)")
    lines.append(f"What one takes:   {this_command()} plan STUDY")
    return lines


def report_lines(found: list[Finding]) -> list[str]:
    """The findings, one a line, advice below its own."""
    width = max(len(item.name) for item in found)
    lines = []
    for item in found:
        lines.append(f"{item.grade:<4}  {item.name:<{width}}  {item.value}")
        if item.advice:
            lines.append(f"      {'':<{width}}  -> {item.advice}")
    return lines


def examine(
    project: Project, tell: Callable[[str], None], seen: Condition | None = None, room: Room | None = None
) -> None:
    """Tell all findings, and then which studies fit.

    Args:
        seen: by default this machine as it is now; `room` likewise.

    Raises:
        ReproError: something is bad (exit code ENVIRONMENT); told after all the rest.
    """
    found = findings(seen or condition_here(project))
    for line in report_lines(found):
        tell(line)
    tell("")
    for line in study_lines(fits(project, "full", room or room_here(project))):
        tell(line)
    bad = [item for item in found if item.grade is Grade.BAD]
    if bad:
        raise ReproError(
            f"This machine can't measure as it is: {', '.join(f'{item.name} ({item.value})' for item in bad)}.",
            "Each is marked `bad` above.",
            bad[0].advice,
            Exit.ENVIRONMENT,
        )


def _gb(number: int) -> str:
    return f"{number / 1e9:,.1f} GB"
