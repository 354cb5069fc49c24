"""Valid records, receipts and gates of a study that never ran: scripted physics from a seed, for tests of the analysis.

    study = demo_study()
    made = synthetic_study_records(study, seed=1, world=World(noise=0.02, faults=(Fault("fallback", "padded-*"),)))
    made.records, made.receipts, made.gates, made.log_probabilities

A trial of N tokens costs a*N + b*N^2 seconds on the target; a draft that is not the target itself costs
`draft_share` of that. The rest follows from the selection's arithmetic, times lognormal noise, drift and outliers.
"""

import hashlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specprefill_repro.files import content_id
from specprefill_repro.gate.schema import Check, GateResult
from specprefill_repro.study.engines import VllmMlxEngine
from specprefill_repro.study.plan import ArmKind, Cell, PlannedTrial, block_trials, plan_cells
from specprefill_repro.study.schema import Comparison, NeedleKind, Pair, Prompts, Selection, Study, Treatment
from specprefill_repro.trials.schema import (
    PHASES,
    BlockReceipt,
    Evidence,
    MachineState,
    Phases,
    PromptFacts,
    ServerEvidence,
    TrialRecord,
)

VOCABULARY = 32
FAULTS = (
    "fallback",
    "cache",
    "suspend",
    "swap",
    "heat",
    "positions",
    "float32",
    "phases",
    "not-restored",
    "prompt",
    "keeps-all",
    "last-token",
    "crash",
)


@dataclass(frozen=True)
class Fault:
    """What goes wrong in the treated trials (or at `position`) of the cells whose id matches the pattern `cell`."""

    kind: str
    cell: str = "*"
    block: int | None = None
    position: int | None = None
    reason: str = "scoring raised AttributeError"
    """Of a `fallback`."""

    def hits(self, cell: str, block: int, position: int, treated: bool) -> bool:
        where = treated if self.position is None else position == self.position
        return fnmatchcase(cell, self.cell) and self.block in (None, block) and where


@dataclass(frozen=True)
class World:
    """The truth behind the records."""

    per_token: float = 0.01
    """a, seconds a token on the target."""
    per_token_squared: float = 2e-5
    """b, seconds a token squared on the target."""
    draft_share: float = 0.25
    """Cost of a draft that is another model than the target."""
    noise: float = 0.01
    """Standard deviation of ln(seconds) of a trial."""
    drift: float = 0.0
    """Share by which each trial is slower than the one before."""
    outliers: float = 0.0
    """Share of trials that take half as long again."""
    true_ratio: Mapping[str, float] = field(default_factory=dict)
    """Cell pattern -> dense seconds / treated seconds, instead of what the physics gives."""
    dense_factor: Mapping[str, float] = field(default_factory=dict)
    """Cell pattern -> factor on the seconds of its dense arm: a weak baseline."""
    answers_lost: Mapping[str, float] = field(default_factory=dict)
    """Cell pattern -> share of treated trials that lose the answer, instead of asking whether the needle was kept."""
    faults: tuple[Fault, ...] = ()
    gate_fails: tuple[str, ...] = ()
    """Pairs whose gate fails."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Engine -> version that its server names; one of vllm-mlx has the study's own."""


class SyntheticStudy(NamedTuple):
    records: list[TrialRecord]
    receipts: list[BlockReceipt]
    gates: dict[str, GateResult]
    log_probabilities: Callable[[str], npt.NDArray[np.float32]]


def demo_study(blocks: int = 3, **changes: Any) -> Study:
    """A study in the shape of the demo: padded and self, placebo and random selection, two lengths."""
    speculative, lengths = Treatment.SPECULATIVE, (512, 1024)
    comparisons = (
        Comparison(pair="padded", treatment=speculative, lengths=lengths, keep=(0.1, 0.2, 0.3), blocks=blocks),
        Comparison(pair="padded", treatment=Treatment.PLACEBO, lengths=(512,), blocks=blocks),
        Comparison(pair="padded", treatment=Treatment.RANDOM, lengths=lengths, keep=(0.2,), blocks=blocks),
        Comparison(pair="self", treatment=speculative, lengths=lengths, keep=(0.2,), blocks=blocks),
    )
    values: dict[str, Any] = {
        "name": "demo",
        "title": "Synthetic demo",
        "question": "Does SpecPrefill shorten the time to first token on this machine?",
        "seed": 1,
        "pairs": {
            "padded": Pair(target="smollm2-135m-padded", draft="smollm2-135m"),
            "self": Pair(target="smollm2-135m", draft="smollm2-135m"),
        },
        "prompts": Prompts(kinds=(NeedleKind.NUMBER, NeedleKind.CITY)),
        "comparisons": comparisons,
        "claims": ("demo-*",),
    }
    return Study(**(values | changes))


def synthetic_study_records(study: Study, seed: int, world: World | None = None) -> SyntheticStudy:
    """Run the study in `world` (default: a quiet one); the same seed gives the same records."""
    world = world or World()
    rng = np.random.default_rng(seed)
    vectors: dict[str, npt.NDArray[np.float32]] = {}
    records: list[TrialRecord] = []
    receipts: list[BlockReceipt] = []
    for cell in plan_cells(study):
        for block in range(cell.blocks):
            trials = block_trials(study.seed, cell, block)
            crashed = any(f.kind == "crash" and f.hits(cell.id, block, 0, True) for f in world.faults)
            made = (
                []
                if crashed
                else [
                    _trial(study, world, cell, block, trial, len(records) + i, rng, vectors)
                    for i, trial in enumerate(trials)
                ]
            )
            records += made
            receipts.append(
                BlockReceipt(
                    cell=cell.id,
                    block=block,
                    order="BAAB" if trials[0].treated else "ABBA",
                    fingerprint=content_id({"cell": cell.id, "block": block}),
                    parts={"code": content_id("code")},
                    records=tuple(content_id(record) for record in made),
                    void="the worker of trial 2 ended with signal 9" if crashed else None,
                )
            )
    gates = {name: _gate(name, pair, name not in world.gate_fails) for name, pair in study.pairs.items()}
    return SyntheticStudy(records, receipts, gates, vectors.__getitem__)


def _gate(name: str, pair: Pair, passes: bool) -> GateResult:
    difference = "largest difference 0.0" if passes else "largest difference 4.5"
    check = Check(name="kept keys at true positions", passed=passes, measured=difference, required="below 1e-4")
    weights = {"target_weights_sha256": content_id(pair.target), "draft_weights_sha256": content_id(pair.draft)}
    fingerprint = content_id([name, passes])
    return GateResult(
        pair=name, target=pair.target, draft=pair.draft, fingerprint=fingerprint, checks=(check,), **weights
    )


def _trial(
    study: Study,
    world: World,
    cell: Cell,
    block: int,
    trial: PlannedTrial,
    number: int,
    rng: np.random.Generator,
    vectors: dict[str, npt.NDArray[np.float32]],
) -> TrialRecord:
    pair = study.pairs[cell.pair]
    hits = [f for f in world.faults if f.hits(cell.id, block, trial.position, trial.treated)]
    faults = {f.kind: f for f in hits}
    arm = cell.treated if trial.treated else cell.baseline
    server = study.runs_on_server(cell.engine)
    selection = study.selection if server and arm.kind is ArmKind.SPECULATIVE else arm.selection
    sparse = selection is not None and "fallback" not in faults
    prompt = _prompt(study, cell, trial.prompt, "prompt" in faults)
    needle = round(prompt.depth * (cell.length - 1))
    random_arm = cell.treatment is Treatment.RANDOM and trial.treated
    draft = pair.draft if selection is not None and not random_arm else None

    ranges: tuple[tuple[int, int], ...] = ((0, cell.length),)
    if sparse and selection is not None and "keeps-all" not in faults:
        seed = f"{prompt.id}/{block}" if random_arm else None
        ranges = _kept(selection, cell.length, arm.keep, None if random_arm else needle, seed)
    if "last-token" in faults:
        ranges = (*ranges[:-1], (ranges[-1][0], ranges[-1][1] - 1))
    kept = sum(end - start for start, end in ranges)
    needle_kept = any(start <= needle < end for start, end in ranges)
    share = _first_match(world.answers_lost, cell.id) if trial.treated else None
    found = needle_kept if share is None else bool(rng.random() >= share)

    phases = _physics(study, world, cell, pair, trial.treated, draft is not None, kept)
    factor = float(np.exp(world.noise * rng.standard_normal()) * (1 + world.drift * number))
    if rng.random() < world.outliers:
        factor *= 1.5
    phases = {name: seconds * factor for name, seconds in phases.items()}
    seconds = sum(phases.values())
    if "phases" in faults:
        seconds *= 1.1

    positions_hash = content_id([i for start, end in ranges for i in range(start, end)])
    log_p = _log_probabilities(prompt.sha256, 0.0 if kept == cell.length else 0.05 if found else 2.0)
    logits_hash = hashlib.sha256(log_p.tobytes()).hexdigest()
    vectors[logits_hash] = log_p
    before = MachineState(
        load_1min=0.1, swap_out_bytes=0, available_bytes=8 << 30, cpu_mhz=2000.0, other_cpu_percent=1.0
    )
    record = TrialRecord(
        cell=cell.id,
        block=block,
        position=trial.position,
        treated=trial.treated,
        requested=arm,
        outcome="sparse" if sparse else "dense" if selection is None else f"fallback: {faults['fallback'].reason}",
        engine="mlx-lm",
        target=pair.target,
        draft=draft,
        target_weights_sha256=content_id(pair.target),
        draft_weights_sha256=content_id(draft) if draft else None,
        prompt=prompt,
        seconds=seconds,
        phases=Phases(**phases),
        load_seconds=1.0,
        warmup_seconds=2.0,
        ready_seconds=0.5,
        answer_text=f"It is {prompt.answer}." if found else "I do not know.",
        answer_found=found,
        decode_tokens=study.prompts.answer_tokens - 1,
        decode_seconds=(study.prompts.answer_tokens - 1) * _step_seconds(world, pair.target == pair.draft) * factor,
        peak_memory_bytes=2 << 30,
        peak_mlx_bytes=1 << 30,
        paged_in_bytes=(64 << 20) + 1 if "paging" in faults else 0,
        evidence=Evidence(
            tokens_scored=cell.length if draft else 0,
            tokens_kept=kept,
            kept_ranges=ranges,
            kept_sha256=positions_hash,
            rotary_positions_sha256=content_id([1]) if "positions" in faults else positions_hash if sparse else None,
            rotary_modules=30 if sparse else 0,
            rotary_modules_restored=(29 if "not-restored" in faults else 30) if sparse else 0,
            cache_tokens_before=64 if "cache" in faults else 0,
            cache_tokens_after=kept,
            key_dtype="float16" if "float32" in faults else "float32",
            logits_dtype="float32",
            look_ahead_tokens=tuple(range(1, selection.look_ahead)) if draft and selection else (),
            selection_seed=f"{prompt.id}/{block}" if random_arm else None,
            needle_kept=float(needle_kept),
            first_token=int(np.argmax(log_p)),
            logits_sha256=logits_hash,
        ),
        before=before,
        after=before.model_copy(
            update={
                "swap_out_bytes": 4096 if "swap" in faults else 0,
                **({"thermal_pressure": "heavy"} if "heat" in faults else {}),
            }
        ),
        suspended_seconds=3.0 if "suspend" in faults else 0.0,
        started_at=f"2026-01-01T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}+00:00",
        environment={"chip": "Synthetic", "memory_gib": "16", "mlx": "0", "mlx-lm": "0"},
    )
    return _on_server(record, study, world, cell.engine) if server else record


def _on_server(record: TrialRecord, study: Study, world: World, engine: str) -> TrialRecord:
    """The same trial as a server's log and answer would tell it."""
    settings, own = study.engines[engine], record.evidence
    assert isinstance(own, Evidence)
    version = world.versions.get(engine) or (settings.version if isinstance(settings, VllmMlxEngine) else "0")
    evidence = ServerEvidence(
        prompt_tokens=record.prompt.tokens,
        tokens_scored=own.tokens_scored if record.outcome == "sparse" else 0,
        tokens_kept=own.tokens_kept,
        keep_logged=record.requested.keep if record.draft else None,
        threshold_logged=1 if record.draft else None,
        cached_tokens=own.cache_tokens_before,
        draft_cached_tokens=0,
        completion_tokens=2,
        finish_reason="length",
        first_text=record.answer_text[:3],
        lines=("SpecPrefill: scored and sparse",) if record.outcome == "sparse" else (),
        server_seconds={},
        log_sha256=content_id([record.cell, record.block, record.position]),
    )
    changes = {"engine": settings.kind, "evidence": evidence, "phases": None, "load_seconds": None}
    environment = {**record.environment, settings.kind: version}
    return record.model_copy(update={**changes, "peak_mlx_bytes": None, "environment": environment})


def _prompt(study: Study, cell: Cell, index: int, other: bool) -> PromptFacts:
    kind = study.prompts.kinds[index % len(study.prompts.kinds)]
    name = f"{kind}-{cell.length}-{index:03d}"
    return PromptFacts(
        id=name,
        sha256=content_id([cell.pair, name, other]),
        tokens=cell.length,
        kind=kind,
        depth=random.Random(f"{cell.pair}/{name}").uniform(0.15, 0.85),
        answer="4711",
        compressed_share=0.4,
    )


def _kept(
    selection: Selection, length: int, keep: float, needle: int | None, seed: str | None
) -> tuple[tuple[int, int], ...]:
    """Half-open ranges of head, tail and the chosen chunks between them; the needle's chunk is always chosen."""
    head, tail = min(selection.head, length), max(length - selection.tail, selection.head)
    starts = list(range(head, tail, selection.chunk))
    wanted = max(1, round(keep * len(starts)))
    if keep >= 1:
        return ((0, length),)
    order = starts[:]
    random.Random(seed or f"{length}/{keep}/{needle}").shuffle(order)
    if needle is not None:
        order.sort(key=lambda start: not start <= needle < start + selection.chunk)
    kept = sorted(order[:wanted])
    ranges: list[tuple[int, int]] = []
    for start, end in [(0, head), *((s, min(s + selection.chunk, tail)) for s in kept), (tail, length)]:
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        elif end > start:
            ranges.append((start, end))
    return tuple(ranges)


def _step_seconds(world: World, is_draft: bool) -> float:
    return 5 * world.per_token * (world.draft_share if is_draft else 1.0)


def _physics(
    study: Study, world: World, cell: Cell, pair: Pair, treated: bool, drafted: bool, kept: int
) -> dict[str, float]:
    """Seconds by phase without noise. A model that drafts costs `draft_share`, also where it is the target."""
    share = world.draft_share if pair.target == pair.draft else 1.0

    def prefill(tokens: int, share: float) -> float:
        return share * (world.per_token * tokens + world.per_token_squared * tokens**2)

    # As some engines do it: all tokens but the last, then one pass of the last.
    step = _step_seconds(world, pair.target == pair.draft)
    dense = {"target_prefill": prefill(cell.length - 1, share), "first_token": step}
    dense_total = sum(dense.values())
    phases = dict.fromkeys(PHASES, 0.0)
    if not treated:
        factor = _first_match(world.dense_factor, cell.id) or 1.0
        return phases | {name: factor * seconds for name, seconds in dense.items()}
    ratio = _first_match(world.true_ratio, cell.id)
    if cell.treatment.reads_all:
        return phases | {name: seconds / (ratio or 1.0) for name, seconds in dense.items()}
    phases |= {"selection": 0.002, "target_prefill": prefill(kept - 1, share), "first_token": step}
    if drafted:
        phases["draft_prefill"] = prefill(cell.length - 1, world.draft_share)
        phases["look_ahead"] = study.selection.look_ahead * _step_seconds(world, True)
        phases["scoring"] = 2e-5 * cell.length
    scale = dense_total / ratio / sum(phases.values()) if ratio else 1.0
    return {name: seconds * scale for name, seconds in phases.items()}


def _first_match(patterns: Mapping[str, float], cell: str) -> float | None:
    return next((value for pattern, value in patterns.items() if fnmatchcase(cell, pattern)), None)


def _log_probabilities(prompt: str, disturbance: float) -> npt.NDArray[np.float32]:
    """float32 [VOCABULARY] log-probabilities: the dense ones of a prompt, disturbed."""
    rng = np.random.default_rng(int(prompt[:8], 16))
    logits = 3 * rng.standard_normal(VOCABULARY) + disturbance * rng.standard_normal(VOCABULARY)
    return (logits - np.log(np.exp(logits).sum())).astype(np.float32)
