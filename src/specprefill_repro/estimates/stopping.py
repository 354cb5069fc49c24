"""How many blocks a cell gets: it may stop once its interval is narrow enough, whatever the interval says."""

from collections.abc import Callable, Sequence

from specprefill_repro.estimates.pairing import index_trials, sort_trials
from specprefill_repro.estimates.schema import Look
from specprefill_repro.estimates.statistics import MIN_PAIRS, TIE_MARGIN, log_ratio, stopping_decision
from specprefill_repro.gate.schema import GateResult
from specprefill_repro.study.plan import Cell, plan_cells
from specprefill_repro.study.schema import Study
from specprefill_repro.trials.schema import BlockReceipt, TrialRecord

NAMED = 4
"""Cells of a note that are named; of more, the number."""


def look(cell: Cell, records: Sequence[TrialRecord], receipts: Sequence[BlockReceipt], gate: GateResult) -> Look:
    """Look at the pairs of the blocks that have run, and decide whether the cell gets another one.

    Args:
        receipts: of all its blocks so far; `records` are those that they name.
    """
    if not gate.passed:
        return Look(cell=cell.id, blocks=len(receipts), pairs=0, stop=True, reason="the gate failed: no trial counts")
    counted = sort_trials(cell, index_trials(records), receipts, gate).counted
    ratios = [log_ratio(twins.dense.seconds, twins.treated.seconds) for twins in counted]
    decision = stopping_decision(ratios, TIE_MARGIN, cap=2 * cell.most_blocks)
    return Look(cell=cell.id, blocks=len(receipts), pairs=len(ratios), stop=decision.stop, reason=decision.reason)


def blocks_to_run(cell: Cell, stops: Callable[[int], bool]) -> int:
    """How many blocks belong to a cell; `stops` says whether the look after so many blocks ended it."""
    blocks = cell.blocks
    while blocks < cell.most_blocks and not stops(blocks):
        blocks += 1
    return blocks


def too_few_blocks(study: Study) -> list[str]:
    """Says, in at most one line, which cells of a study cannot get a verdict on speed, nor have others that can.

    A cell of few blocks is none of them where another cell of the same pair, treatment and engine has enough: it is
    there to be shown beside that one.
    """
    cells = plan_cells(study)
    enough = {_kind(cell) for cell in cells if 2 * cell.most_blocks >= MIN_PAIRS}
    few = [cell.id for cell in cells if _kind(cell) not in enough]
    if not few:
        return []
    if study.shrunk is not None:
        return ["Note: at tiny scale each cell gets one block: enough to see that all works here, no verdict on speed."]
    named = ", ".join(few[:NAMED]) + (f" and {len(few) - NAMED} more" if len(few) > NAMED else "")
    which = "no cell reaches" if len(few) == len(cells) else f"{named}: too few blocks for"
    return [
        f"Note: {which} the {MIN_PAIRS} pairs that a verdict on speed needs; a block is 2 pairs, so that takes "
        f"`blocks: {-(-MIN_PAIRS // 2)}` or more."
    ]


def _kind(cell: Cell) -> tuple[str, str, str]:
    return cell.pair, cell.treatment, cell.engine
