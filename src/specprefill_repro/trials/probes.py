"""Short dense trials of one model, to know its cost on this machine before a long study."""

import os
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from specprefill_repro.engines.interface import Engine
from specprefill_repro.files import content_id, read_model, sha256_file, write_json
from specprefill_repro.fingerprint import code_fingerprint
from specprefill_repro.models.schema import Manifest
from specprefill_repro.project import Project
from specprefill_repro.schema import Frozen
from specprefill_repro.study.plan import Arm, ArmKind
from specprefill_repro.study.schema import Study
from specprefill_repro.trials.busy import was_busy
from specprefill_repro.trials.job import Job
from specprefill_repro.trials.lease import machine_lease
from specprefill_repro.trials.machine import machine_facts

DECODED = 8
"""Tokens that are decoded after each, to know what one pass of one token costs."""
LENGTHS = (256, 512, 1024)
"""Tokens of the probes; none is longer than the longest prompt of the study, or than the model allows."""
REPEATS = 3
"""Of each length, so that the times' scatter is known."""


class Probe(Frozen):
    """One dense prefill in a clean process."""

    tokens: int
    seconds: float
    step_seconds: float
    """Of one pass of one token after it."""
    overhead_seconds: float
    """Starting, loading, warming up: what a trial costs besides."""
    peak_memory_bytes: int
    load_1min: float
    """Just before it."""
    busy: bool
    """Whether other processes took a good part of the machine around it."""


class Probes(Frozen):
    model: str
    fingerprint: str
    probes: tuple[Probe, ...]
    """`REPEATS` of each length."""

    @property
    def busy(self) -> bool:
        """Whether other processes may have made any of them slow."""
        return any(probe.busy for probe in self.probes)


def probe_model(
    project: Project, study: Study, manifest: Manifest, engine: Engine, tell: Callable[[str], None]
) -> Probes:
    """Time short prefills of a model, or find them from before; those from a busy machine are taken again.

    Raises:
        ReproError: the engine could not measure.
    """
    longest = min(manifest.context, max(length for item in study.comparisons for length in item.lengths))
    lengths = sorted({min(length, longest) for length in LENGTHS})
    fingerprint = content_id(
        {
            "code": code_fingerprint(engine.code([ArmKind.DENSE])),
            "engine": engine.name,
            "environment": sha256_file(project.environment_lock),
            "machine": content_id(machine_facts()),
            "weights": manifest.weights_sha256,
            "step": study.prefill_step,
            "lengths": lengths,
            "repeats": REPEATS,
        }
    )
    path = project.results / "probes" / f"{fingerprint}.json"
    if path.exists():
        found = read_model(path, Probes)
        if not found.busy:
            return found
    said = f"Timing {manifest.name} at {', '.join(f'{length:,}' for length in lengths)} tokens, {REPEATS} times each"
    tell(f"{said}, again, since the machine was busy the last time ..." if path.exists() else f"{said} ...")
    held = machine_lease(tell=tell) if engine.needs_machine else nullcontext()
    with held as lease, tempfile.TemporaryDirectory() as folder:
        # Length by length and not repeat by repeat, so that a busy minute does not hit one length alone.
        probes = tuple(
            _probe(project, study, manifest, engine, lease, length, Path(folder))
            for _ in range(REPEATS)
            for length in lengths
        )
    found = Probes(model=manifest.name, fingerprint=fingerprint, probes=probes)
    write_json(path, found)
    return found


def _probe(
    project: Project, study: Study, manifest: Manifest, engine: Engine, lease: int | None, length: int, folder: Path
) -> Probe:
    # Which tokens they are makes no difference to the time of a dense prefill.
    ids = tuple(1 + (7 * place) % (manifest.vocabulary - 1) for place in range(length))
    job = Job(
        target_folder=str(project.model_folder(manifest.name)),
        draft_folder=None,
        arm=Arm(kind=ArmKind.DENSE),
        ids=ids,
        needle_tokens=((0, 1),),
        warmup_ids=ids[::-1][: min(study.warmup_tokens, length)],
        step=study.prefill_step,
        answer_tokens=1 + DECODED,
        seed=f"{study.seed}/probe-{manifest.name}/{length}",
        logits_file=str(folder / "first-token.f32"),
    )
    seen = engine.measure(job, lease)
    decoded = len(seen.tokens) - 1
    return Probe(
        tokens=length,
        seconds=seen.seconds,
        # An engine that decodes nothing says what the pass of the last prompt token took.
        step_seconds=seen.decode_seconds / decoded if decoded else seen.phases.first_token if seen.phases else 0.0,
        overhead_seconds=seen.ready_seconds + (seen.load_seconds or 0.0) + seen.warmup_seconds,
        peak_memory_bytes=seen.peak_memory_bytes,
        load_1min=seen.before.load_1min,
        busy=was_busy(seen.before, seen.after, os.cpu_count() or 1),
    )
