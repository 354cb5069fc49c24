"""What a study will run: its cells, and the four trials of each block. No file is read here."""

import random
import re
from enum import StrEnum

from specprefill_repro.files import content_id
from specprefill_repro.schema import Frozen
from specprefill_repro.study.schema import Comparison, Selection, Study, Treatment

PROMPT_SET = 24
"""Prompts are made in multiples of this."""
LONGEST_SLUG = 60


class ArmKind(StrEnum):
    """A way of prefilling; `specprefill_repro.trials.worker` names the module of each."""

    DENSE = "dense"
    SPECULATIVE = "speculative"
    RANDOM = "random"
    HEAD_TAIL = "head-tail"
    UNIFORM = "uniform"
    PLAIN = "plain"
    """Dense, by mlx_lm's own generation loop."""

    @property
    def reads_all(self) -> bool:
        return self in (ArmKind.DENSE, ArmKind.PLAIN)


class Arm(Frozen):
    """One way of prefilling with all its parameters, as requested."""

    kind: ArmKind
    keep: float = 1.0
    selection: Selection | None = None
    """None for dense, and on servers, which have rules of their own."""


class Cell(Frozen):
    """One treatment at one prompt length and keep rate against dense; the unit that gets an estimate."""

    id: str
    pair: str
    engine: str
    """Name of the engine in the study."""
    treatment: Treatment
    length: int
    keep: float
    """Nominal; 1 where both arms read everything."""
    blocks: int
    """That always run."""
    most_blocks: int
    """That run when the machine is noisy; equal to `blocks` where the number is fixed."""
    baseline: Arm
    treated: Arm
    rule: str | None = None
    """Label of the treated arm's selection rule, where it is named or the comparison's own."""


class PlannedTrial(Frozen):
    position: int
    """0 to 3, the order in which the trials of a block run."""
    treated: bool
    """False: the baseline arm (A); true: the treated arm (B)."""
    prompt: int
    """Index into the prompt set of the cell's pair and length."""


def plan_cells(study: Study) -> list[Cell]:
    """All cells of a study, in the order in which its file names them."""
    return [
        _cell(study, comparison, length, keep)
        for comparison in study.comparisons
        for length in comparison.lengths
        for keep in comparison.keep or (1.0,)
    ]


def _cell(study: Study, comparison: Comparison, length: int, keep: float) -> Cell:
    reads_all = comparison.treatment.reads_all
    kind = ArmKind.DENSE if comparison.treatment is Treatment.PLACEBO else ArmKind(comparison.treatment)
    engine = comparison.engine or study.engine
    own = comparison.selection
    selection = None if study.runs_on_server(engine) else own or study.selection
    treated = Arm(kind=kind) if reads_all else Arm(kind=kind, keep=keep, selection=selection)
    slug = "" if own is None else f"-{_slug(own)}"
    suffix = "" if reads_all else f"{slug}-keep{keep:g}"
    suffix += "" if engine == study.engine else f"-on-{engine}"
    named = treated.selection if own or study.selection.preset else None
    return Cell(
        id=f"{comparison.pair}-{length}-{comparison.treatment}{suffix}",
        pair=comparison.pair,
        engine=engine,
        treatment=comparison.treatment,
        length=length,
        keep=keep,
        blocks=comparison.blocks,
        most_blocks=comparison.most_blocks or comparison.blocks,
        baseline=Arm(kind=ArmKind.DENSE),
        treated=treated,
        rule=None if named is None else named.label,
    )


def _slug(selection: Selection) -> str:
    """A rule's label as a part of a file name, such as `ours-chunk-16`."""
    slug = re.sub(r"[^a-z0-9.]+", "-", selection.label.lower()).strip("-")
    return slug if len(slug) <= LONGEST_SLUG else f"{slug[:LONGEST_SLUG]}-{content_id(selection)[:8]}"


def block_trials(seed: int, cell: Cell, block: int) -> tuple[PlannedTrial, ...]:
    """The four trials of one block: A B B A or B A A B by a seeded coin, two prompts, each once in either arm.

    The mirrored order cancels a linear drift; the coin keeps one arm from always being first.
    """
    first_treated = random.Random(f"{seed}/{cell.id}/{block}").random() < 0.5
    arms = (first_treated, not first_treated, not first_treated, first_treated)
    prompts = (2 * block, 2 * block, 2 * block + 1, 2 * block + 1)
    return tuple(
        PlannedTrial(position=position, treated=treated, prompt=prompt)
        for position, (treated, prompt) in enumerate(zip(arms, prompts, strict=True))
    )


def prompts_needed(study: Study, pair: str, length: int) -> int:
    """How many prompts the largest cell of that pair and length takes, rounded up to a full set.

    Rounded, so that a few more blocks do not change the file that finished blocks depend on.
    """
    largest = max(
        (2 * cell.most_blocks for cell in plan_cells(study) if (cell.pair, cell.length) == (pair, length)), default=0
    )
    return -(-largest // PROMPT_SET) * PROMPT_SET
