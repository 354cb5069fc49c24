"""What a step's outputs were made from, written beside them when the step has passed.

The record names every part by its digest; what a digest stands for lies once for all steps in results/parts. Neither is
an output of a rule: no rule depends on them, and Snakemake deletes neither before a rerun.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from specprefill_repro.files import read_model, sha256_file, write_json
from specprefill_repro.parts import Part, of_yaml
from specprefill_repro.project import Project
from specprefill_repro.schema import Frozen
from specprefill_repro.steps import Step, find_step
from specprefill_repro.study.load import load_study
from specprefill_repro.trials.schema import BlockReceipt
from specprefill_repro.trials.store import Store

DIGEST = re.compile(r"[0-9a-f]{64}")


class MadeFrom(Frozen):
    step: str
    parts: dict[str, str]
    """Digests by name, as the rule's parameter has them; what they stand for is in results/parts."""
    inputs: dict[str, str]
    """SHA-256 of each file that was read, by its path below the project."""
    outputs: dict[str, str]
    """SHA-256 of each file that was written."""
    seconds: float | None
    """That the step took; of a block, what its four trials took when they were measured."""


@contextmanager
def remembered(project: Project, study_name: str, step_id: str) -> Iterator[None]:
    """Run a step inside; when it has passed, what it was made from is written. All is read before the step begins.

    A step that the study does not have is not remembered: the stage itself says what is wrong.

    Raises:
        ReproError: the study is not valid, or what the step depends on can't be read.
    """
    study = load_study(project, study_name)
    step = find_step(project, study, step_id)
    if step is None:
        yield
        return
    parts = step.parts()
    for each in parts.values():
        _keep(project, each)
    inputs = hashes(project, step.inputs)
    for file in step.inputs:
        if file.suffix == ".yaml":
            _keep(project, of_yaml(file))
    started = time.monotonic()
    yield
    record = MadeFrom(
        step=step_id,
        parts={name: each.digest for name, each in parts.items()},
        inputs=inputs,
        outputs=hashes(project, step.outputs),
        seconds=_block_seconds(project, step) if step_id.startswith("blocks/") else time.monotonic() - started,
    )
    write_json(project.made_from(study_name, step_id), record)


def hashes(project: Project, files: tuple[Path, ...]) -> dict[str, str]:
    """SHA-256 of the files that are there, by their path below the project."""
    return {project.relative(file): sha256_file(file) for file in files if file.is_file()}


def _keep(project: Project, part: Part) -> None:
    if part.describe is not None and DIGEST.fullmatch(part.digest):
        path = project.part(part.digest)
        if not path.exists():
            write_json(path, part.describe())


def _block_seconds(project: Project, step: Step) -> float | None:
    """From the starts of a block's trials: what four take, their processes' start and all untimed work included.

    None of a block without trials, as a failed gate leaves it.
    """
    store = Store(project.store)
    records = [store.get_record(identity) for identity in read_model(step.outputs[0], BlockReceipt).records]
    starts = sorted(datetime.fromisoformat(record.started_at) for record in records)
    if len(starts) < 2:
        return None
    return (starts[-1] - starts[0]).total_seconds() / (len(starts) - 1) * len(starts)
