"""Which results of a study are fresh, stale or missing, why, and what it takes to bring them up to date.

Everything is computed anew from the files; what Snakemake remembers is not asked.
"""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specprefill_repro.changes import changes
from specprefill_repro.errors import ReproError
from specprefill_repro.files import MAX_JSON_BYTES, read_limited, read_model, read_yaml, sha256_file
from specprefill_repro.gate.schema import GateResult
from specprefill_repro.made_from import DIGEST, MadeFrom
from specprefill_repro.models.schema import Manifest
from specprefill_repro.project import Project
from specprefill_repro.prompts.schema import PromptSet
from specprefill_repro.steps import Step, steps_of
from specprefill_repro.study.plan import Cell, block_trials, plan_cells
from specprefill_repro.study.scale import SUFFIX, TINY
from specprefill_repro.study.schema import Study
from specprefill_repro.this_command import this_command
from specprefill_repro.trials.block import block_fingerprint
from specprefill_repro.trials.schema import BlockReceipt
from specprefill_repro.trials.store import Store
from specprefill_repro.twins import twins_of

ANALYSIS = ("stopping", "estimates", "verdicts", "report")
"""Kinds of steps that take seconds: nothing, where no earlier time is known."""
NOT_RUN = "not run yet"
UNKNOWN = "nothing tells what it was made from: cut short, or made by an earlier version"
SHOWN = 3
"""Changes of one part, and files of one kind, that are named; of more, the number."""


class State(StrEnum):
    FRESH = "fresh"
    STALE = "stale"
    MISSING = "missing"


@dataclass(frozen=True)
class Standing:
    """How one step of a study stands."""

    step: Step
    state: State
    reasons: tuple[str, ...]
    """In words; none when fresh."""
    seconds: float | None
    """To bring it up to date, once all before it is: 0 when fresh or measured before, None when not known."""
    damaged: bool = False
    """Its outputs, or records that they name, are not as they were made; what it was made from says nothing of that."""


def study_status(project: Project, study: Study) -> list[Standing]:
    """Every receipt of a study, in the order of the flow.

    Raises:
        ReproError: the study names an unknown model or engine, or a file that it depends on can't be read.
    """
    steps = steps_of(project, study)
    makers = {file: step.id for step in steps for file in step.outputs}
    records = {step.id: _record(project, step, study.name) for step in steps}
    prices = _Prices(project, study, steps, records)
    hash_of = cache(sha256_file)
    found: dict[str, Standing] = {}
    for step in steps:
        asked_by = found.get(makers.get(step.asked_by, "")) if step.asked_by else None
        if asked_by and asked_by.state is not State.FRESH and not any(file.exists() for file in step.outputs):
            continue  # Whether it is wanted at all, that look decides anew.
        makers_before = [(file, makers[file]) for file in (*step.inputs, *step.after) if file in makers]
        before = {file: found[maker].state for file, maker in makers_before if maker in found}
        damage = _damage(project, step, records[step.id], hash_of)
        reasons = damage or tuple(_changes(project, step, records[step.id], before, hash_of))
        missing = not all(file.is_file() for file in step.outputs)
        state = State.MISSING if missing else State.STALE if reasons else State.FRESH
        found[step.id] = Standing(step, state, reasons, prices.of(step, state, before), damaged=bool(damage))
    return list(found.values())


def _record(project: Project, step: Step, study: str) -> MadeFrom | None:
    path = project.made_from(study, step.id)
    return read_model(path, MadeFrom) if path.is_file() else None


def _damage(project: Project, step: Step, record: MadeFrom | None, hash_of: Callable[[Path], str]) -> tuple[str, ...]:
    """Why the step's outputs are not what it once made."""
    gone = [project.relative(file) for file in step.outputs if not file.is_file()]
    if gone and record is None:
        return (NOT_RUN,)
    if gone:
        return (f"{', '.join(gone)} is gone: removed, or a rerun of it has not passed yet",)
    if record is None:
        return (UNKNOWN,)
    return (*_changed_outputs(project, step, record, hash_of), *_damaged_records(project, step))


def _changes(
    project: Project, step: Step, record: MadeFrom | None, before: Mapping[Path, State], hash_of: Callable[[Path], str]
) -> Iterator[str]:
    """What differs from what the step's outputs were made from."""
    if record is not None:
        yield from _changed_parts(project, step, record)
        yield from _changed_inputs(project, step, record, before, hash_of)


def _changed_parts(project: Project, step: Step, record: MadeFrom) -> Iterator[str]:
    parts = step.parts()
    for name, part in sorted(parts.items()):
        old = record.parts.get(name)
        if old is None:
            yield f"depends on something new: {name}"
        elif old != part.digest and not (DIGEST.fullmatch(old) and DIGEST.fullmatch(part.digest)):
            yield f"{name} {old} -> {part.digest}"
        elif old != part.digest:
            yield _difference(project, name, old, part.describe)
    for name in sorted(record.parts.keys() - parts.keys()):
        yield f"no longer depends on: {name}"


def _changed_inputs(
    project: Project, step: Step, record: MadeFrom, before: Mapping[Path, State], hash_of: Callable[[Path], str]
) -> Iterator[str]:
    inputs = {project.relative(file): file for file in step.inputs}
    waiting = {project.relative(file): state for file, state in before.items() if state is not State.FRESH}
    for state in (State.STALE, State.MISSING):
        yield from _listed("reads", [name for name in waiting if waiting[name] is state], f", {state}")
    yield from _listed("now reads", [name for name in inputs if name not in record.inputs])
    yield from _listed("no longer reads", sorted(record.inputs.keys() - inputs.keys()))
    for name, file in inputs.items():
        if name in waiting or name not in record.inputs:
            continue
        if not file.is_file():
            yield f"{name} is gone"
        elif record.inputs[name] != hash_of(file):
            describe = partial(read_yaml, file) if file.suffix == ".yaml" else None
            yield _difference(project, name, record.inputs[name], describe)


def _listed(verb: str, names: Sequence[str], tail: str = "") -> Iterator[str]:
    """A sentence a file, or one for many."""
    if len(names) <= SHOWN:
        yield from (f"{verb} {name}{tail}" for name in names)
    else:
        yield f"{verb} {len(names)} files{tail}, such as {names[0]}"


def _changed_outputs(project: Project, step: Step, record: MadeFrom, hash_of: Callable[[Path], str]) -> Iterator[str]:
    for file in step.outputs:
        name = project.relative(file)
        if record.outputs.get(name) != hash_of(file):
            yield f"{name} is not as it was made"


def _damaged_records(project: Project, step: Step) -> Iterator[str]:
    """Of a block, records and what belongs to them; the store is read whole."""
    if not step.id.startswith("blocks/"):
        return
    store = Store(project.store)
    try:
        for identity in read_model(step.outputs[0], BlockReceipt).records:
            store.check_artifact(store.get_record(identity))
    except ReproError as error:
        yield error.what


def _difference(project: Project, name: str, old: str, describe: Callable[[], Any] | None) -> str:
    """What changed in a part or a file, whose old digest is given; only that it did, where nothing describes it."""
    kept = project.part(old)
    if describe is None or not kept.is_file():
        return f"{name} changed"
    found = list(changes(json.loads(read_limited(kept, MAX_JSON_BYTES)), describe()))
    if not found:
        return f"{name} changed, though in nothing that this command can name"
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"{name}: {'; '.join(found[:SHOWN])}{more}"


class _Prices:
    """What steps take, from what they took before; a block of a new cell from the others, by the length of prompts."""

    def __init__(
        self, project: Project, study: Study, steps: Sequence[Step], records: Mapping[str, MadeFrom | None]
    ) -> None:
        self.project, self.study = project, study
        self.store = Store(project.store)
        self.cells = {cell.id: cell for cell in plan_cells(study)}
        self.took: dict[str, float] = {}
        for step, record in records.items():
            if record is not None and record.seconds is not None:
                self.took[step] = record.seconds
        blocks: dict[str, list[float]] = {}
        for step, seconds in self.took.items():
            kind, _, rest = step.partition("/")
            if kind == "blocks":
                blocks.setdefault(rest.rpartition("/")[0], []).append(seconds)
        self.block_took = {cell: statistics.mean(seconds) for cell, seconds in blocks.items()}
        """By cell."""
        self.prompt_set = cache(lambda file: read_model(file, PromptSet))
        by_id = {step.id: step for step in steps}
        self.twins = cache(lambda step: {twin.study: twin for twin in twins_of(project, study.name, by_id[step])})
        """By their studies, of a step by its id."""

    def of(self, step: Step, state: State, before: Mapping[Path, State]) -> float | None:
        if state is State.FRESH:
            return 0.0
        kind, _, rest = step.id.partition("/")
        if kind == "blocks":
            cell, index = rest.rsplit("/", 1)
            return self._of_block(step, self.cells[cell], int(index), before)
        alike = [seconds for other, seconds in self.took.items() if other.partition("/")[0] == kind]
        usual = statistics.mean(alike) if alike else 0.0 if kind in ANALYSIS else None
        if usual is None:
            elsewhere = [twin.record.seconds for twin in self.twins(step.id).values()]
            usual = max((seconds for seconds in elsewhere if seconds is not None), default=None)
        return self.took.get(step.id, usual)

    def _of_block(self, step: Step, cell: Cell, index: int, before: Mapping[Path, State]) -> float | None:
        if self._needs_no_trial(step, cell, index, before):
            return 0.0
        if cell.id in self.block_took:
            return self.block_took[cell.id]
        per_token = [seconds / self.cells[other].length for other, seconds in self.block_took.items()]
        return statistics.mean(per_token) * cell.length if per_token else None

    def _needs_no_trial(self, step: Step, cell: Cell, index: int, before: Mapping[Path, State]) -> bool:
        """Whether its trials are in the store, or its pair's gate failed."""
        name, pair = self.study.name, self.study.pairs[cell.pair]
        gate, prompts = self.project.gate(name, cell.pair), self.project.prompts(name, cell.pair, cell.length)
        if before[gate] is State.FRESH and not read_model(gate, GateResult).passed:
            return True
        if before[prompts] is State.FRESH:
            return self._is_in_store(step, cell, index, name)
        # Other prompts may come out of it, and other models may have read them; but not where another study has them.
        needed = (
            f"prompts/{cell.pair}-{cell.length}",
            f"gate/{cell.pair}",
            *(f"models/{model}" for model in {pair.target, pair.draft}),
        )
        return any(
            all(other in self.twins(each) for each in needed[1:]) and self._is_in_store(step, cell, index, other)
            for other in self.twins(needed[0])
        )

    def _is_in_store(self, step: Step, cell: Cell, index: int, study: str) -> bool:
        """Whether the store has the block's trials, by the prompts and models that a study's results hold."""
        pair, trials = self.study.pairs[cell.pair], block_trials(self.study.seed, cell, index)
        target, draft = (
            read_model(self.project.model_receipt(study, model), Manifest) for model in (pair.target, pair.draft)
        )
        prompts = self.prompt_set(self.project.prompts(study, cell.pair, cell.length))
        settings = {part: each.digest for part, each in step.parts().items()}
        fingerprint, _ = block_fingerprint(settings, cell, trials, prompts, target, draft)
        return self.store.find_receipt(fingerprint) is not None


def print_status(project: Project, study: Study, found: Sequence[Standing], console: Console) -> None:
    """Print one line a receipt, a table on a terminal; then what it comes to."""
    columns = ("receipt", "state", "minutes", "why")
    rows = [(each.step.id, str(each.state), _minutes(each), "; ".join(each.reasons)) for each in found]
    if console.is_terminal:
        table = Table(*columns, title=study.title)
        for row in rows:
            table.add_row(*map(Text, row), style="dim" if row[1] == State.FRESH else None)
        console.print(table)
    else:
        for row in (columns, *rows):
            print("\t".join(" ".join(value.split()) for value in row), file=console.file)
    for line in summary_lines(project, study, found):
        print(line, file=console.file)


def summary_lines(project: Project, study: Study, found: Sequence[Standing]) -> list[str]:
    """How many receipts are fresh, stale and missing, and the command that brings them up to date, with its price."""
    counts = ", ".join(f"{sum(each.state is state for each in found)} {state}" for state in State)
    due = [each for each in found if each.state is not State.FRESH]
    if not due:
        return [f"{counts}; nothing to do"]
    unknown = sum(each.seconds is None for each in due)
    minutes = sum(each.seconds or 0.0 for each in due) / 60
    price = f"about {minutes:.0f} min" if minutes >= 1 else "less than a minute"
    if unknown and minutes < 1:
        price = "it is not known how long it takes"
    elif unknown:
        price += f", and {unknown} of unknown length,"
    lines = [f"{counts}; {price} to bring up to date: {_command(study)}"]
    if unknown:
        lines.append(f"Predicted from short probes: {this_command()} plan {_command(study).partition(' ')[2]}")
    stored = sum(each.step.id.startswith("blocks/") and each.seconds == 0 for each in due)
    if stored:
        blocks = "1 block needs" if stored == 1 else f"{stored} blocks need"
        lines.append(f"{blocks} no new trial: what was measured under the same fingerprint is in results/store.")
    page = project.report(study.name)
    if page.is_file():
        lines.append(f"The last report stays until the new one has passed: {project.relative(page)}")
    return lines


def _minutes(standing: Standing) -> str:
    if standing.state is State.FRESH:
        return ""
    return "?" if standing.seconds is None else f"{standing.seconds / 60:.1f}"


def _command(study: Study) -> str:
    tiny = study.shrunk is not None
    return f"./reproduce {study.name.removesuffix(SUFFIX)} --scale {TINY}" if tiny else f"./reproduce {study.name}"
