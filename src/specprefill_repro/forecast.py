"""What a study will take, and whether SpecPrefill can help at all here: before anything long is run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil
from rich.console import Console
from rich.table import Table

from specprefill_repro.engines.interface import engine_of
from specprefill_repro.estimates import cost_model
from specprefill_repro.estimates.cost_model import ModelCost, model_cost
from specprefill_repro.estimates.prediction import DenseTimes
from specprefill_repro.estimates.stopping import too_few_blocks
from specprefill_repro.files import read_model, read_yaml_model
from specprefill_repro.models.schema import Manifest, ModelsLock
from specprefill_repro.project import Project
from specprefill_repro.staleness import models_of
from specprefill_repro.study.engines import IN_PROCESS
from specprefill_repro.study.plan import ArmKind, Cell, plan_cells
from specprefill_repro.study.schema import Study, Treatment
from specprefill_repro.trials.probes import LENGTHS, Probe, probe_model

RECORD_BYTES = 8_000
"""Of one record, a receipt's share included."""


@dataclass(frozen=True)
class CellForecast:
    cell: Cell
    dense_seconds: float | None
    """Of one trial; None without probes of both models."""
    treated_seconds: float | None
    speedup: float | None
    bound: float | None
    break_even: int | None


@dataclass(frozen=True)
class Forecast:
    cells: tuple[CellForecast, ...]
    least_trials: int
    most_trials: int
    least_seconds: float | None
    most_seconds: float | None
    disk_bytes: int | None
    """Of models and records; None when a model's size is not known."""
    memory_bytes: int | None
    """Of the largest pair, as probes saw it or from the weights."""
    missing: tuple[str, ...]
    """Models that are not on this machine."""

    @property
    def best(self) -> CellForecast | None:
        """The natural cell with the largest predicted gain."""
        cells = [c for c in self.cells if c.cell.treatment is Treatment.SPECULATIVE and c.speedup is not None]
        return max(cells, key=lambda c: c.speedup or 0.0, default=None)


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
    probes = {n: probe_model(project, study, manifests[n], engine, tell) for n in names if n in manifests}
    costs = {name: _cost(found) for name, found in probes.items()}
    forecasts = tuple(_cell(study, cell, costs) for cell in cells)
    overhead = max((probe.overhead_seconds for found in probes.values() for probe in found), default=0.0)
    least, most = 4 * sum(cell.blocks for cell in cells), 4 * sum(cell.most_blocks for cell in cells)
    return Forecast(
        cells=forecasts,
        least_trials=least,
        most_trials=most,
        least_seconds=_seconds(forecasts, overhead, lambda cell: cell.blocks),
        most_seconds=_seconds(forecasts, overhead, lambda cell: cell.most_blocks),
        disk_bytes=_disk(project, models_of(project, study), manifests, most),
        memory_bytes=_memory(study, manifests, probes),
        missing=missing,
    )


def _manifest(project: Project, model: str) -> Manifest | None:
    path = project.model_manifest(model)
    here = path.exists() and project.model_folder(model).is_dir()
    return read_model(path, Manifest) if here else None


def _cost(probes: tuple[Probe, ...]) -> ModelCost:
    return model_cost({probe.tokens: DenseTimes(probe.seconds, probe.step_seconds) for probe in probes})


def _cell(study: Study, cell: Cell, costs: Mapping[str, ModelCost]) -> CellForecast:
    pair = study.pairs[cell.pair]
    target, draft = costs.get(pair.target), costs.get(pair.draft)
    dense = None if target is None else target.dense(cell.length)
    if cell.treatment is Treatment.PLACEBO:
        return CellForecast(cell, dense, dense, None, None, None)
    selection = cell.treated.selection or study.selection
    drafted = cell.treated.kind is ArmKind.SPECULATIVE
    if target is None or (draft is None and drafted):
        return CellForecast(cell, dense, None, None, None, None)
    used = draft if drafted else None
    longest = max(cell.length, cost_model.REACH * max(LENGTHS))
    return CellForecast(
        cell,
        dense,
        cost_model.treated_seconds(target, used, cell.length, cell.keep, selection),
        cost_model.speedup(target, used, cell.length, cell.keep, selection),
        cost_model.bound(target.prefill, used.prefill if used else None, cell.length, cell.keep),
        cost_model.break_even(target, used, cell.keep, selection, longest),
    )


def _seconds(cells: tuple[CellForecast, ...], overhead: float, blocks: Callable[[Cell], int]) -> float | None:
    total = 0.0
    for found in cells:
        if found.dense_seconds is None or found.treated_seconds is None:
            return None
        total += 2 * blocks(found.cell) * (found.dense_seconds + found.treated_seconds + 2 * overhead)
    return total


def _disk(project: Project, models: list[str], manifests: Mapping[str, Manifest], trials: int) -> int | None:
    lock = read_yaml_model(project.models_lock, ModelsLock) if project.models_lock.exists() else ModelsLock()
    total = 0
    for name in models:
        if name in manifests:
            total += sum(file.size for file in manifests[name].files)
        elif name in lock.models:
            total += sum(file.size for file in lock.models[name].files)
        else:
            return None
    vocabulary = max((manifest.vocabulary for manifest in manifests.values()), default=150_000)
    return total + trials * (RECORD_BYTES + 4 * vocabulary)


def _memory(study: Study, manifests: Mapping[str, Manifest], probes: Mapping[str, tuple[Probe, ...]]) -> int | None:
    def of(model: str) -> int:
        seen = max(probe.peak_memory_bytes for probe in probes[model]) if model in probes else 0
        return max(seen, manifests[model].weight_bytes)

    pairs = [pair for pair in study.pairs.values() if pair.target in manifests and pair.draft in manifests]
    return max((sum(of(name) for name in {pair.target, pair.draft}) for pair in pairs), default=None)


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
    placebo = cell.treatment is Treatment.PLACEBO
    return (
        cell.id,
        trials,
        "?" if found.dense_seconds is None else f"{found.dense_seconds:.3g} s",
        "?" if found.treated_seconds is None else f"{found.treated_seconds:.3g} s",
        "1.00" if placebo else "?" if found.speedup is None else f"{found.speedup:.2f}",
        "" if placebo else "?" if found.bound is None else f"{found.bound:.2f}",
        "" if placebo else even,
    )


def summary_lines(study: Study, found: Forecast) -> list[str]:
    """What the study takes, and the answer to whether SpecPrefill can help here."""
    trials = f"{found.least_trials:,}"
    trials += f" to {found.most_trials:,}" if found.most_trials > found.least_trials else ""
    lines = [f"trials: {trials}", *too_few_blocks(study)]
    if found.least_seconds is not None and found.most_seconds is not None:
        times = sorted({_minutes(found.least_seconds), _minutes(found.most_seconds)}, key=len)
        lines.append(f"time: about {' to '.join(times)}, at 1 trial at a time")
    if found.disk_bytes is not None:
        lines.append(f"disk: {found.disk_bytes / 1e9:.1f} GB for models and records")
    if found.memory_bytes is not None:
        have = psutil.virtual_memory().total
        fits = "fits" if found.memory_bytes < 0.9 * have else "does not fit"
        lines.append(f"memory: {found.memory_bytes / 1e9:.1f} GB for the largest pair; {fits} in {have / 1e9:.0f} GB")
    if found.missing:
        lines.append(f"not here yet: {', '.join(found.missing)}; no cell that needs them is predicted.")
        lines.append(f"Fetch them, and run the study, with: ./reproduce {study.name}")
    best = found.best
    if best is not None and best.speedup is not None:
        gain = f"predicted speed-up {best.speedup:.2f} in {best.cell.id}"
        lines.append(
            f"SpecPrefill can help here: {gain}." if best.speedup > 1 else f"SpecPrefill cannot help here: {gain}."
        )
    return lines


def _minutes(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{seconds / 60:.0f} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
    )
