"""The steps of a study in the order of the flow: what each reads, writes and depends on; the rules' twin in Python."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from specprefill_repro import staleness
from specprefill_repro.errors import ReproError
from specprefill_repro.estimates.schema import Look
from specprefill_repro.estimates.stopping import blocks_to_run
from specprefill_repro.files import read_model
from specprefill_repro.models.load import base_of, load_definition
from specprefill_repro.parts import Parts
from specprefill_repro.project import Project
from specprefill_repro.staleness import models_of
from specprefill_repro.study.plan import Cell, plan_cells
from specprefill_repro.study.schema import Study


@dataclass(frozen=True)
class Step:
    id: str
    """Its receipt's path below the study's results, without the ending: such as gate/PAIR or blocks/CELL/0."""
    inputs: tuple[Path, ...]
    outputs: tuple[Path, ...]
    """The first one is its receipt."""
    parts: Callable[[], Parts]
    """What else can change its result; works on files, so ask once."""
    after: tuple[Path, ...] = ()
    """Looks that decide which inputs it has."""
    asked_by: Path | None = None
    """The look that asked for it: a further block of a cell, or the look after that."""


def steps_of(project: Project, study: Study) -> list[Step]:
    """All steps of a study.

    A cell whose number of blocks is not fixed has those that its looks asked for so far.

    Raises:
        ReproError: the study names an unknown model.
    """
    return [
        *_model_steps(project, study),
        *_environment_steps(project, study),
        *_prompts_steps(project, study),
        *_gate_steps(project, study),
        *(step for cell in plan_cells(study) for step in _cell_steps(project, study, cell)),
        *_analysis_steps(project, study),
    ]


def find_step(project: Project, study: Study, identity: str) -> Step | None:
    """The step of that id; None when the study has none."""
    kind, _, rest = identity.partition("/")
    steps: Iterable[Step]
    if kind in ("blocks", "stopping"):
        cells = [cell for cell in plan_cells(study) if cell.id == rest.rpartition("/")[0]]
        steps = (step for cell in cells for step in _cell_steps(project, study, cell))
    else:
        steps = {
            "models": _model_steps,
            "environments": _environment_steps,
            "prompts": _prompts_steps,
            "gate": _gate_steps,
        }.get(kind, _analysis_steps)(project, study)
    return next((step for step in steps if step.id == identity), None)


def _model_steps(project: Project, study: Study) -> Iterator[Step]:
    for model in models_of(project, study):
        base = base_of(load_definition(project, model).source)
        yield Step(
            f"models/{model}",
            (project.model_receipt(study.name, base),) if base else (),
            (project.model_receipt(study.name, model),),
            partial(staleness.model_parts, project, study, model),
        )


def _environment_steps(project: Project, study: Study) -> Iterator[Step]:
    for name in dict.fromkeys(_environment(study, cell) for cell in plan_cells(study)):
        if name is not None:
            yield Step(
                f"environments/{name}",
                (),
                (project.environment_receipt(study.name, name),),
                partial(staleness.environment_parts, project, name),
            )


def _environment(study: Study, cell: Cell) -> str | None:
    settings = study.engines.get(cell.engine)
    return settings.environment if settings else None


def _prompts_steps(project: Project, study: Study) -> Iterator[Step]:
    for pair, length in dict.fromkeys((cell.pair, cell.length) for cell in plan_cells(study)):
        yield Step(
            f"prompts/{pair}-{length}",
            _models_of_pair(project, study, pair),
            (project.prompts(study.name, pair, length),),
            partial(staleness.prompts_parts, project, study, pair, length),
        )


def _gate_steps(project: Project, study: Study) -> Iterator[Step]:
    for pair in study.pairs:
        yield Step(
            f"gate/{pair}",
            _models_of_pair(project, study, pair),
            (project.gate(study.name, pair),),
            partial(staleness.gate_parts, project, study),
        )


def _models_of_pair(project: Project, study: Study, pair: str) -> tuple[Path, ...]:
    models = study.pairs[pair]
    return tuple(project.model_receipt(study.name, name) for name in sorted({models.target, models.draft}))


def _cell_steps(project: Project, study: Study, cell: Cell) -> Iterator[Step]:
    environment = _environment(study, cell)
    inputs = (
        project.gate(study.name, cell.pair),
        project.prompts(study.name, cell.pair, cell.length),
        *((project.environment_receipt(study.name, environment),) if environment else ()),
    )
    known: list[Parts] = []

    def parts() -> Parts:
        """The same for all blocks of a cell."""
        if not known:
            known.append(staleness.block_parts(project, study, cell))
        return known[0]

    def block(index: int) -> Step:
        receipt = project.block_receipt(study.name, cell.id, index)
        return Step(f"blocks/{cell.id}/{index}", inputs, (receipt,), parts, asked_by=look_before(index))

    def look(number: int) -> Step:
        return Step(
            f"stopping/{cell.id}/{number}",
            tuple(project.block_receipt(study.name, cell.id, index) for index in range(number)),
            (project.stopping(study.name, cell.id, number),),
            partial(staleness.stopping_parts, project, study, cell),
            asked_by=look_before(number - 1),
        )

    def look_before(index: int) -> Path | None:
        return project.stopping(study.name, cell.id, index) if index >= cell.blocks else None

    blocks = blocks_of(project, study, cell)
    looks = looks_of(cell, blocks)
    for number in range(blocks + 1):
        if number in looks:
            yield look(number)
        if number < blocks:
            yield block(number)


def _analysis_steps(project: Project, study: Study) -> Iterator[Step]:
    name, cells = study.name, plan_cells(study)
    numbers = {cell.id: blocks_of(project, study, cell) for cell in cells}
    gates = tuple(project.gate(name, pair) for pair in study.pairs)
    models = tuple(project.model_receipt(name, model) for model in models_of(project, study))
    estimates = (project.estimates(name), project.trials(name), project.blocks(name))
    yield Step(
        "estimates",
        (
            *(project.block_receipt(name, cell.id, index) for cell in cells for index in range(numbers[cell.id])),
            *gates,
        ),
        estimates,
        partial(staleness.estimates_parts, project, study),
        tuple(project.stopping(name, cell.id, number) for cell in cells for number in looks_of(cell, numbers[cell.id])),
    )
    yield Step(
        "verdicts",
        (*estimates, *(project.root / file for file in staleness.claim_files(project)), *models),
        (project.verdicts(name),),
        partial(staleness.verdicts_parts, project, study),
    )
    yield Step(
        "report",
        (*estimates, project.verdicts(name), *gates, *models),
        (project.report_receipt(name), project.report(name)),
        partial(staleness.report_parts, project, study),
    )


def blocks_of(project: Project, study: Study, cell: Cell) -> int:
    """How many blocks of a cell belong to the study, as far as its looks tell; a look that is not there ends it."""

    def stops(blocks: int) -> bool:
        try:
            return read_model(project.stopping(study.name, cell.id, blocks), Look).stop
        except ReproError:
            return True

    return blocks_to_run(cell, stops)


def looks_of(cell: Cell, blocks: int) -> range:
    """After how many blocks a cell that has so many by now is looked at."""
    return range(cell.blocks, min(blocks + 1, cell.most_blocks))
