"""A machine that does not exist, with a known truth: physics from a script, faults on demand, no model on disk.

It goes through the same interface as every other engine, so that the whole chain can be held against the truth. A
study cannot name it; `specprefill_repro.calibration` hands it over.
"""

import hashlib
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import content_id, write_bytes
from specprefill_repro.study.plan import ArmKind
from specprefill_repro.study.schema import Selection
from specprefill_repro.trials.job import Job, Measurement
from specprefill_repro.trials.schema import PHASES, Evidence, MachineState, Phases

NAME = "scripted"
MACHINE = {"chip": "Scripted machine", "cores": "1", "memory_gib": "16", NAME: "1"}
VOCABULARY = 32
MODULES = 4

Value = TypeVar("Value")


class Fault(StrEnum):
    """What can go wrong in a trial."""

    CACHE_HIT = "cache hit"
    SILENT_FALLBACK = "silent fallback"
    """Asked for SpecPrefill, ran dense, and answered as if nothing had happened."""
    WRONG_POSITIONS = "wrong positions"
    WEAK_BASELINE = "weak baseline"
    """The dense arm takes twice its time."""
    THROTTLING = "throttling"
    """From the middle of the study on, everything takes half as long again."""
    SUSPEND = "suspend"
    SWAP = "swap"
    HEAT = "heat"
    """The system says that heat slows the machine."""
    CRASH = "crash"
    OUTLIER = "outlier"
    """One trial of the cell takes three times its time."""


@dataclass(frozen=True)
class Cost:
    """What a model's prefill of N tokens costs: per_token * N + per_token_squared * N^2 seconds; one token: `step`."""

    per_token: float
    per_token_squared: float
    step: float

    def prefill(self, tokens: int) -> float:
        return self.per_token * tokens + self.per_token_squared * tokens**2


@dataclass(frozen=True)
class Noise:
    """How the seconds of a trial scatter around the truth."""

    deviation: float = 0.01
    """Of ln(seconds)."""
    drift: float = 0.0
    """Share by which each trial is slower than the one before."""
    outliers: float = 0.0
    """Share of trials that take half as long again."""

    def factors(self, rng: np.random.Generator, trials: int, first: int = 0) -> npt.NDArray[np.float64]:
        """float64 [trials] factors on the seconds of the trials `first`, `first` + 1, ... of a study."""
        scatter = np.exp(self.deviation * rng.standard_normal(trials))
        slower = 1 + self.drift * np.arange(first, first + trials)
        return scatter * slower * np.where(rng.random(trials) < self.outliers, 1.5, 1.0)


@dataclass(frozen=True)
class World:
    """The truth."""

    costs: Mapping[str, Cost]
    """By model."""
    noise: Noise = Noise()
    true_ratio: Mapping[str, float] = field(default_factory=dict)
    """Cell pattern -> dense / treated seconds, instead of what the costs give."""
    dense_factor: Mapping[str, float] = field(default_factory=dict)
    """Cell pattern -> factor on the seconds of its dense arm, as a baseline from another day would have."""
    faults: Mapping[str, Fault] = field(default_factory=dict)
    """Cell pattern -> what goes wrong there."""
    loses_answers: float = 0.0
    """Share of sparse trials that lose the answer."""


class ScriptedEngine:
    """One machine of one world; it counts its trials, so a study is a story and not a set."""

    name = NAME
    needs_machine = False

    def __init__(self, world: World, seed: int, trials: int) -> None:
        """`trials`: how many the study will have; throttling sets in after half of them."""
        self.world, self.trials, self.done = world, trials, 0
        self.rng = np.random.default_rng(seed)
        self.stumbled: set[str] = set()

    def code(self, arms: Iterable[ArmKind]) -> tuple[str, ...]:
        return (__name__,)

    def settings(self) -> Mapping[str, str]:
        return {}

    def measure(self, job: Job, lease: int | None) -> Measurement:
        """One trial of the story; the seconds are told, not waited for."""
        number, self.done = self.done, self.done + 1
        _, cell, prompt = job.seed.split("/")
        fault = _first_match(self.world.faults, cell)
        treated = job.arm.kind is not ArmKind.DENSE
        if fault is Fault.CRASH and treated:
            raise ReproError(
                "The process of a trial was killed (signal 9).",
                "The script of this machine says so.",
                "Run the same command again.",
                Exit.TRIAL,
            )
        runs_sparse = treated and fault is not Fault.SILENT_FALLBACK
        ranges = kept_ranges(job, prompt) if runs_sparse else ((0, len(job.ids)),)
        kept = sum(end - start for start, end in ranges)
        phases = self._phases(job, cell, kept, runs_sparse)
        factor = float(self.world.noise.factors(self.rng, 1, number)[0]) * self._mishap(fault, cell, treated, number)
        phases = {name: seconds * factor for name, seconds in phases.items()}
        slept = 3.0 if fault is Fault.SUSPEND and treated else 0.0
        needle = [token for start, stop in job.needle_tokens for token in range(start, stop)]
        holds_needle = all(any(start <= token < end for start, end in ranges) for token in needle)
        found = holds_needle and not (runs_sparse and self.rng.random() < self.world.loses_answers)
        answer = job.ids[job.needle_tokens[0][0]] if found else 0
        vector = log_probabilities(job.ids, 0.0 if not runs_sparse else 0.05 if found else 2.0)
        write_bytes(Path(job.logits_file), vector.tobytes())
        before, after = self._states(fault if treated else None)
        return Measurement(
            seconds=sum(phases.values()),
            phases=Phases(**phases),
            load_seconds=1.0,
            warmup_seconds=1.0,
            ready_seconds=0.5,
            tokens=(answer,),
            decode_tokens=0,
            decode_seconds=0.0,
            peak_memory_bytes=2 << 30,
            peak_mlx_bytes=1 << 30,
            outcome="sparse" if runs_sparse else "dense" if not treated else "fallback: the draft could not be read",
            evidence=_evidence(job, ranges, kept, runs_sparse, fault if treated else None, vector),
            before=before,
            after=after,
            suspended_seconds=slept,
            started_at=_clock(number),
            environment=MACHINE,
        )

    def _phases(self, job: Job, cell: str, kept: int, runs_sparse: bool) -> dict[str, float]:
        target = self.world.costs[Path(job.target_folder).name]
        phases = dict.fromkeys(PHASES, 0.0)
        dense = {"target_prefill": target.prefill(len(job.ids)), "first_token": target.step}
        if not runs_sparse:
            factor = _first_match(self.world.dense_factor, cell) or 1.0
            return phases | {name: factor * seconds for name, seconds in dense.items()}
        phases |= {"selection": 0.001, "target_prefill": target.prefill(kept), "first_token": target.step}
        if job.draft_folder is not None and job.arm.selection is not None:
            draft = self.world.costs[Path(job.draft_folder).name]
            phases["draft_prefill"] = draft.prefill(len(job.ids)) + draft.step
            phases["look_ahead"] = (job.arm.selection.look_ahead - 1) * draft.step
            phases["scoring"] = 1e-6 * len(job.ids)
        ratio = _first_match(self.world.true_ratio, cell)
        scale = sum(dense.values()) / ratio / sum(phases.values()) if ratio else 1.0
        return {name: seconds * scale for name, seconds in phases.items()}

    def _mishap(self, fault: Fault | None, cell: str, treated: bool, number: int) -> float:
        if fault is Fault.WEAK_BASELINE and not treated:
            return 2.0
        if fault is Fault.THROTTLING and number >= self.trials // 2:
            return 1.5
        if fault is Fault.CACHE_HIT and treated:
            return 0.3
        if fault is Fault.OUTLIER and treated and cell not in self.stumbled:
            self.stumbled.add(cell)
            return 3.0
        return 1.0

    def _states(self, fault: Fault | None) -> tuple[MachineState, MachineState]:
        before = MachineState(
            load_1min=0.1, swap_out_bytes=0, available_bytes=8 << 30, cpu_mhz=2000.0, other_cpu_percent=1.0
        )
        after = {"swap_out_bytes": 4096 if fault is Fault.SWAP else 0}
        return before, before.model_copy(update=after | ({"thermal_pressure": "heavy"} if fault is Fault.HEAT else {}))


def _evidence(
    job: Job,
    ranges: tuple[tuple[int, int], ...],
    kept: int,
    runs_sparse: bool,
    fault: Fault | None,
    vector: npt.NDArray[np.float32],
) -> Evidence:
    positions = content_id([position for start, end in ranges for position in range(start, end)])
    seen = content_id([0]) if fault is Fault.WRONG_POSITIONS else positions
    drafted = runs_sparse and job.draft_folder is not None
    look_ahead = job.arm.selection.look_ahead - 1 if drafted and job.arm.selection else 0
    return Evidence(
        tokens_scored=len(job.ids) if drafted else 0,
        tokens_kept=kept,
        kept_ranges=ranges,
        kept_sha256=positions,
        rotary_positions_sha256=seen if runs_sparse else None,
        rotary_modules=MODULES if runs_sparse else 0,
        rotary_modules_restored=MODULES if runs_sparse else 0,
        cache_tokens_before=64 if fault is Fault.CACHE_HIT else 0,
        cache_tokens_after=kept,
        key_dtype="float32",
        logits_dtype="float32",
        look_ahead_tokens=(1,) * look_ahead,
        selection_seed=job.seed if job.arm.kind is ArmKind.RANDOM else None,
        needle_kept=1.0,
        first_token=int(np.argmax(vector)),
        logits_sha256=hashlib.sha256(vector.tobytes()).hexdigest(),
    )


def kept_ranges(job: Job, prompt: str) -> tuple[tuple[int, int], ...]:
    """Half-open ranges that a treated trial keeps: head, tail, and chunks by a coin; scoring always finds the needle.

    A random selection finds it by luck alone.
    """
    selection, length = job.arm.selection or Selection(), len(job.ids)
    head, tail = min(selection.head, length), max(length - selection.tail, selection.head)
    starts = list(range(head, tail, selection.chunk))
    order = starts[:]
    random.Random(f"{prompt}/{job.arm.keep}").shuffle(order)
    if job.arm.kind is ArmKind.SPECULATIVE:
        needle = [token for start, stop in job.needle_tokens for token in range(start, stop)]
        order.sort(key=lambda start: not any(start <= token < start + selection.chunk for token in needle))
    chosen = sorted(order[: max(1, round(job.arm.keep * len(starts)))])
    ranges: list[tuple[int, int]] = []
    for start, end in [(0, head), *((s, min(s + selection.chunk, tail)) for s in chosen), (tail, length)]:
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        elif end > start:
            ranges.append((start, end))
    return tuple(ranges)


def log_probabilities(ids: tuple[int, ...], disturbance: float) -> npt.NDArray[np.float32]:
    """float32 [VOCABULARY] log-probabilities of the first token: those of a prompt, disturbed."""
    rng = np.random.default_rng(int(content_id(list(ids))[:8], 16))
    logits = 3 * rng.standard_normal(VOCABULARY) + disturbance * rng.standard_normal(VOCABULARY)
    return (logits - math.log(float(np.exp(logits).sum()))).astype(np.float32)


def _clock(number: int) -> str:
    return f"2026-01-01T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}.000+00:00"


def _first_match(patterns: Mapping[str, Value], cell: str) -> Value | None:
    return next((value for pattern, value in patterns.items() if fnmatchcase(cell, pattern)), None)
