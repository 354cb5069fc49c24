"""What a study will take, and whether SpecPrefill can help at all here: before anything long is run."""

import importlib.metadata
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from rich.console import Console
from rich.table import Table

from specprefill_repro.engines.interface import engine_of
from specprefill_repro.estimates import cost_model
from specprefill_repro.estimates.cost_model import ModelCost, model_cost
from specprefill_repro.estimates.prediction import DenseTimes
from specprefill_repro.estimates.schema import CellEstimate
from specprefill_repro.estimates.stopping import too_few_blocks
from specprefill_repro.files import read_model
from specprefill_repro.fitting import ArmMemory, Needs, Room, arm_memory, is_here, needs, room_here
from specprefill_repro.measured_times import Scatter, measured_times
from specprefill_repro.models.load import load_definition
from specprefill_repro.models.schema import HubSource, Manifest
from specprefill_repro.project import Project
from specprefill_repro.published_times import PublishedTime, published_time
from specprefill_repro.staleness import models_of
from specprefill_repro.study.engines import IN_PROCESS, VllmMlxEngine
from specprefill_repro.study.plan import ArmKind, Cell, plan_cells
from specprefill_repro.study.scale import SUFFIX, TINY
from specprefill_repro.study.schema import Study, Treatment
from specprefill_repro.this_command import this_command
from specprefill_repro.trials.machine import machine_facts
from specprefill_repro.trials.probes import LENGTHS, Probe, Probes, probe_model
from specprefill_repro.verdicts.claims import load_claims, study_claims
from specprefill_repro.verdicts.foreseen import Foreseen, foresee
from specprefill_repro.verdicts.matching import EngineFacts, Facts, ModelFacts
from specprefill_repro.verdicts.schema import Claim, ClaimKind

RECORD_BYTES = 8_000
"""Of one record, a receipt's share included."""


@dataclass(frozen=True)
class CellForecast:
    cell: Cell
    dense_seconds: float | None
    """Of one trial; None without probes, and where nothing is published either."""
    treated_seconds: float | None
    speedup: float | None
    """From times of this machine alone; a published one is what the study is to test."""
    bound: float | None
    """From the same times; the highest that their scatter allows."""
    break_even: int | None
    published: tuple[PublishedTime, ...] = ()
    """What the seconds rest on where they are not times of this machine."""
    range: tuple[float, float] | None = None
    """Of the predicted speed-up: what the scatter of those times allows."""
    measured: CellEstimate | None = None
    """What the study itself has found here, where that is fresh."""


@dataclass(frozen=True)
class Forecast:
    cells: tuple[CellForecast, ...]
    least_trials: int
    most_trials: int
    least_seconds: float | None
    most_seconds: float | None
    needs: Needs
    """Memory, and disk and download of the models that are not here."""
    record_bytes: int
    """On disk, of all records."""
    room: Room
    memory: Mapping[str, ArmMemory]
    """By pair."""
    missing: tuple[str, ...]
    """Models that are not on this machine."""
    foreseen: tuple[Foreseen, ...]
    """What will become of each claim of the study."""
    timed_by_study: tuple[str, ...] = ()
    """Models whose dense times are the study's own, and not of probes."""
    busy: Mapping[str, float] = field(default_factory=dict)
    """Models that were probed while other processes took much of the machine -> the highest load average then."""

    @property
    def best(self) -> CellForecast | None:
        """The cell with the largest predicted gain; one that is clear in spite of the times' scatter before others."""
        cells = [c for c in self.cells if c.cell.treatment is Treatment.SPECULATIVE and c.speedup is not None]
        return max(cells, key=lambda c: (_range(c)[0] > 1, c.speedup or 0.0), default=None)


def forecast(project: Project, study: Study, tell: Callable[[str], None]) -> Forecast:
    """Probe the models of a study that are here, and predict every cell.

    Raises:
        ReproError: the study names an unknown model or engine, or a probe failed.
    """
    # A server is not probed: what the parts cost in this package's engine stands for all of them.
    name = IN_PROCESS if study.runs_on_server(study.engine) else study.engine
    engine, cells = engine_of(project, study, name), plan_cells(study)
    names = sorted({name for pair in study.pairs.values() for name in (pair.target, pair.draft)})
    manifests = {name: manifest for name in models_of(project, study) if (manifest := _manifest(project, name))}
    missing = tuple(name for name in names if name not in manifests)
    measured = measured_times(project, study)
    by_study = {name: times for name, times in measured.dense.items() if name in manifests} if measured else {}
    probes = {
        name: probe_model(project, study, manifests[name], engine, tell)
        for name in names
        if name in manifests and name not in by_study
    }
    costs = {name: _cost(_scatter(found)) for name, found in probes.items()}
    costs |= {name: _cost(times) for name, times in by_study.items()}
    seen = measured.cells if measured else {}
    facts, claims = facts_here(project, study), load_claims(project)
    forecasts = tuple(_cell(study, cell, costs, facts, claims.values(), seen.get(cell.id)) for cell in cells)
    overheads = [probe.overhead_seconds for found in probes.values() for probe in found.probes]
    overhead = max([*overheads, measured.overhead_seconds if measured else 0.0])
    least, most = 4 * sum(cell.blocks for cell in cells), 4 * sum(cell.most_blocks for cell in cells)
    vocabulary = max((manifest.vocabulary for manifest in manifests.values()), default=150_000)
    return Forecast(
        cells=forecasts,
        least_trials=least,
        most_trials=most,
        least_seconds=_seconds(study, forecasts, overhead, lambda cell: cell.blocks),
        most_seconds=_seconds(study, forecasts, overhead, lambda cell: cell.most_blocks),
        needs=needs(project, study),
        record_bytes=most * (RECORD_BYTES + 4 * vocabulary),
        room=room_here(project),
        memory={name: arm_memory(project, pair) for name, pair in study.pairs.items()},
        missing=missing,
        foreseen=tuple(foresee(study, study_claims(study, claims), facts)),
        timed_by_study=tuple(sorted(by_study)),
        busy={name: max(probe.load_1min for probe in found.probes) for name, found in probes.items() if found.busy},
    )


def facts_here(project: Project, study: Study) -> Facts:
    """What is known of this machine, and of the study's engines and models, before anything runs."""
    machine = machine_facts()
    return Facts(
        hardware=machine["chip"],
        memory_gib=float(machine["memory_gib"]),
        engines={name: _engine_facts(study, name) for name in {cell.engine for cell in plan_cells(study)}},
        models={
            name: _model_facts(project, name) for pair in study.pairs.values() for name in (pair.target, pair.draft)
        },
    )


def _engine_facts(study: Study, name: str) -> EngineFacts:
    settings = study.engines.get(name)
    if isinstance(settings, VllmMlxEngine):
        return EngineFacts(settings.kind, settings.version)
    kind = settings.kind if settings else name
    return EngineFacts(kind, importlib.metadata.version(kind) if kind == IN_PROCESS else None)


def _model_facts(project: Project, name: str) -> ModelFacts:
    definition, manifest = load_definition(project, name), _manifest(project, name)
    source, published = definition.source, definition.published
    identity = source.repository if isinstance(source, HubSource) else name
    if manifest is not None:
        return ModelFacts(identity, (manifest.quantization or "none").split(",")[0].strip())
    return ModelFacts(identity, f"{published.bits}-bit" if published and published.bits else None)


def _manifest(project: Project, model: str) -> Manifest | None:
    return read_model(project.model_manifest(model), Manifest) if is_here(project, model) else None


@dataclass(frozen=True)
class _Costs:
    """Of one model: through the least, the usual and the longest times that were seen."""

    least: ModelCost
    usual: ModelCost
    most: ModelCost


def _scatter(found: Probes) -> dict[int, Scatter]:
    lengths: dict[int, list[Probe]] = {}
    for probe in found.probes:
        lengths.setdefault(probe.tokens, []).append(probe)
    return {
        length: Scatter(
            min(probe.seconds for probe in probes),
            median(probe.seconds for probe in probes),
            max(probe.seconds for probe in probes),
            median(probe.step_seconds for probe in probes),
        )
        for length, probes in lengths.items()
    }


def _cost(times: Mapping[int, Scatter]) -> _Costs:
    def through(seconds: Callable[[Scatter], float]) -> ModelCost:
        return model_cost({tokens: DenseTimes(seconds(seen), seen.step) for tokens, seen in times.items()})

    return _Costs(through(lambda seen: seen.least), through(lambda seen: seen.usual), through(lambda seen: seen.most))


def _cell(
    study: Study,
    cell: Cell,
    costs: Mapping[str, _Costs],
    facts: Facts,
    claims: Iterable[Claim],
    measured: CellEstimate | None,
) -> CellForecast:
    pair = study.pairs[cell.pair]
    target, draft = costs.get(pair.target), costs.get(pair.draft)
    drafted = cell.treated.kind is ArmKind.SPECULATIVE
    if target is None or (draft is None and drafted):
        return _from_published(cell, facts, facts.models[pair.target], facts.models[pair.draft], claims)
    dense = target.usual.dense(cell.length)
    if cell.treatment.reads_all:
        return CellForecast(cell, dense, dense, None, None, None, measured=measured)
    selection = cell.treated.selection or study.selection
    used = draft if drafted else None
    fast, usual, slow = (used.least, used.usual, used.most) if used else (None, None, None)
    longest = max(cell.length, cost_model.REACH * max(LENGTHS))
    treated, slowest, fastest = (
        cost_model.treated_seconds(of_target, of_draft, cell.length, cell.keep, selection)
        for of_target, of_draft in ((target.usual, usual), (target.most, slow), (target.least, fast))
    )
    low, high = target.least.dense(cell.length) / slowest, target.most.dense(cell.length) / fastest
    return CellForecast(
        cell,
        dense,
        treated,
        dense / treated,
        # As `cost_model.bound`, at that end of the scatter where the most can be won.
        target.most.dense(cell.length)
        / ((fast.dense(cell.length) if fast else 0.0) + target.least.prefill.seconds(cell.keep * cell.length)),
        cost_model.break_even(target.usual, usual, cell.keep, selection, longest),
        range=(low, high),
        measured=measured,
    )


def _from_published(
    cell: Cell, facts: Facts, target: ModelFacts, draft: ModelFacts, claims: Iterable[Claim]
) -> CellForecast:
    """Seconds as others published them."""
    dense = published_time(claims, cell.length, facts.hardware, target)
    if dense is None:
        return CellForecast(cell, None, None, None, None, None)
    treated = dense if cell.treatment.reads_all else None
    if cell.treated.kind is ArmKind.SPECULATIVE:
        treated = published_time(claims, cell.length, facts.hardware, target, draft, cell.keep)
    seconds, taken = (treated.seconds if treated else None), dict.fromkeys(time for time in (dense, treated) if time)
    return CellForecast(cell, dense.seconds, seconds, None, None, None, tuple(taken))


def _seconds(
    study: Study, cells: tuple[CellForecast, ...], overhead: float, blocks: Callable[[Cell], int]
) -> float | None:
    """Of all trials; those whose times are published warm up too, and load in a time that nobody published.

    A treated trial of which nobody published a time counts as long as a dense one, which is no prediction.
    """
    total = 0.0
    for found in cells:
        if found.dense_seconds is None:
            return None
        each = found.dense_seconds + (found.dense_seconds if found.treated_seconds is None else found.treated_seconds)
        besides = each * min(1.0, study.warmup_tokens / found.cell.length) if found.published else 2 * overhead
        total += 2 * blocks(found.cell) * (each + besides)
    return total


def print_forecast(study: Study, found: Forecast, console: Console) -> None:
    """Print the table of cells, and then what it comes to."""
    columns = ("cell", "trials", "dense", "treated", "predicted", "bound", "gain from")
    rows = [_row(cell) for cell in found.cells]
    if console.is_terminal:
        table = Table(*columns, title=study.title)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    else:
        for row in (columns, *rows):
            print("\t".join(row), file=console.file)
    for line in summary_lines(study, found):
        print(line, file=console.file)


def _row(found: CellForecast) -> tuple[str, ...]:
    cell = found.cell
    trials = f"{4 * cell.blocks}" + (f" to {4 * cell.most_blocks}" if cell.most_blocks > cell.blocks else "")
    even = f"{found.break_even:,} tokens" if found.break_even else "none seen" if found.speedup is not None else "?"
    tie = cell.treatment.reads_all
    about = "~" if found.published else ""
    return (
        cell.id,
        trials,
        "?" if found.dense_seconds is None else f"{about}{found.dense_seconds:.3g} s",
        "?" if found.treated_seconds is None else f"{about}{found.treated_seconds:.3g} s",
        "1.00" if tie else "?" if found.speedup is None else _predicted(found),
        "" if tie else "?" if found.bound is None else f"{found.bound:.2f}",
        "" if tie else even,
    )


def _predicted(found: CellForecast) -> str:
    if found.range is None:
        return f"{found.speedup:.2f}"
    ends = tuple(f"{end:.2f}" for end in found.range)
    return f"{found.speedup:.2f}" if ends[0] == ends[1] else f"{found.speedup:.2f} ({ends[0]} to {ends[1]})"


def summary_lines(study: Study, found: Forecast) -> list[str]:
    """What the study takes, what it will tell, and the answer to whether SpecPrefill can help here."""
    trials = f"{found.least_trials:,}"
    trials += f" to {found.most_trials:,}" if found.most_trials > found.least_trials else ""
    lines = [f"trials: {trials}", *too_few_blocks(study), *_time_lines(found), *_room_lines(study, found)]
    lines += _claim_lines(found.foreseen)
    if found.missing:
        lines.append(
            f"not here yet: {', '.join(found.missing)}; no speed-up of a cell that needs them is predicted: without "
            "the models it can't be said whether there can be a gain here, nor what it costs in answers."
        )
        if found.needs.too_large_for(found.room):
            tiny = "" if study.name.endswith(SUFFIX) else f"./reproduce {study.name} --scale {TINY}, or "
            lines.append(f"Instead: {tiny}one that fits; `{this_command()} doctor` lists them.")
        else:
            lines.append(f"Fetch them, and run the study, with: ./reproduce {study.name}")
    return [*lines, *_help_lines(study, found)]


def _help_lines(study: Study, found: Forecast) -> list[str]:
    """What the prediction rests on, and the answer: said as clear only where the scatter of the times leaves it so."""
    lines = []
    if found.timed_by_study:
        lines.append(
            f"The dense times of {', '.join(found.timed_by_study)} are those that {study.name} itself measured here, "
            "not of short probes."
        )
    for name, load in found.busy.items():
        lines.append(
            f"Other processes kept this machine busy while {name} was timed (load average up to {load:.1f} on "
            f"{os.cpu_count() or 1} cores): what is predicted from it says little. Run this again when it is quiet; "
            f"{name} is timed anew then."
        )
    best = found.best
    if best is None or best.speedup is None:
        return lines
    gain = f"predicted speed-up {_predicted(best)} in {best.cell.id}"
    if found.missing:
        return [*lines, f"Of the cells whose models are here, the best: {gain}."]
    if best.measured is not None and best.measured.interval95 is not None:
        interval = best.measured.interval95
        gain += f"; measured here {best.measured.speedup:.2f} (95 % interval {interval.low:.2f} to {interval.high:.2f})"
    return [*lines, f"{_clear(found)}: {gain}."]


def _range(found: CellForecast) -> tuple[float, float]:
    """What the speed-up of a cell may be: as measured, else as predicted."""
    return _measured_range(found) or found.range or (0.0, math.inf)


def _measured_range(found: CellForecast) -> tuple[float, float] | None:
    interval = found.measured.interval95 if found.measured is not None else None
    return None if interval is None else (interval.low, interval.high)


def _clear(found: Forecast) -> str:
    """Whether there can be a gain, by what was measured, else by the whole range of what is predicted."""
    cells = [c for c in found.cells if c.cell.treatment is Treatment.SPECULATIVE and c.range is not None]
    # What is predicted from the times of a busy machine decides nothing; what was measured still does.
    ranges = [_measured_range(c) or (0.0, math.inf) if found.busy else _range(c) for c in cells]
    unclear = "It is not clear yet whether SpecPrefill can help here"
    if any(low > 1 for low, _ in ranges):
        return "SpecPrefill can help here"
    return "SpecPrefill cannot help here" if all(high < 1 for _, high in ranges) else unclear


def _time_lines(found: Forecast) -> list[str]:
    unknown = [cell.cell.id for cell in found.cells if cell.dense_seconds is None]
    if found.least_seconds is None or found.most_seconds is None:
        return [
            f"time: not known; {len(unknown)} of {len(found.cells)} cells have a model that is not here, and of which "
            "nobody has published a time"
        ]
    times = dict.fromkeys([_minutes(found.least_seconds), _minutes(found.most_seconds)])
    lines = [f"time: about {' to '.join(times)}, at 1 trial at a time"]
    taken = {time.card: time.hardware for cell in found.cells for time in cell.published}
    if taken:
        lines.append(
            f"  ~: as on {', '.join(sorted(set(taken.values())))}, by the published figures "
            f"{', '.join(sorted(taken))}; without loading the models. This machine may be faster or slower."
        )
    guessed = sum(cell.treated_seconds is None for cell in found.cells)
    if guessed:
        lines.append(
            f"  ?: of {guessed} of {len(found.cells)} cells nobody published how long a treated trial takes; in the "
            "time above it is counted as long as a dense one, which is no prediction."
        )
    return lines


def _room_lines(study: Study, found: Forecast) -> list[str]:
    takes, room = found.needs, found.room
    here = "none, every model is here" if not found.missing else _gigabytes(takes.download_bytes)
    if found.missing and not takes.download_bytes:
        here = "none, what is missing is made from what is here"
    lines = [
        f"download: {here}",
        f"disk: {_gigabytes(takes.disk_bytes + found.record_bytes)} for models that are not here and records; "
        f"{_gigabytes(room.disk_bytes)} are free",
    ]
    for name, memory in found.memory.items():
        arms = (("dense", memory.dense), ("speculative", memory.speculative))
        said = ", ".join(f"{_gigabytes(peak) if peak is not None else 'not known'} {arm}" for arm, peak in arms)
        peaks = [peak for _, peak in arms if peak is not None]
        fits = "" if not peaks else "fits" if max(peaks) <= room.memory_bytes else "does not fit"
        lines.append(f"memory: {name}: about {said}; {fits or 'not known'} in {_gigabytes(room.memory_bytes)}")
    lines += [f"{study.name} does not fit this machine: it {reason}." for reason in takes.too_large_for(room)]
    return lines


def _claim_lines(foreseen: Iterable[Foreseen]) -> list[str]:
    """Which claims will get a verdict, and which none and why; those with the same reason together."""
    judged, unjudged = [], dict[str, list[str]]()
    for item in foreseen:
        if item.judged:
            own = item.claim.kind is ClaimKind.EXPECTATION
            judged.append(f"{item.claim.id} (a control)" if own else item.claim.id)
        else:
            unjudged.setdefault(item.reason or _differences(item), []).append(item.claim.id)
    lines = [f"claims that get a verdict here: {', '.join(judged) or 'none'}"]
    for reason, claims in unjudged.items():
        lines.append(f"  no verdict on {len(claims)}: {reason}: {', '.join(claims)}")
    return lines


def _differences(item: Foreseen) -> str:
    differ = [f"{row.condition} ({row.here} here)" for row in item.failing if row.matches is False]
    open_ones = [row.condition for row in item.failing if row.matches is None]
    parts = [f"another {', '.join(differ)}"] if differ else []
    return "; ".join([*parts, *([f"not stated or not known: {', '.join(open_ones)}"] if open_ones else [])])


def _gigabytes(number: int) -> str:
    return f"{number / 1e9:,.1f} GB"


def _minutes(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{seconds / 60:.0f} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
    )
