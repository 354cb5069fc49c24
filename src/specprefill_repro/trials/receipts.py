"""The receipts of a cell's blocks, where the workflow left them."""

from specprefill_repro.files import read_model
from specprefill_repro.project import Project
from specprefill_repro.study.plan import Cell
from specprefill_repro.study.schema import Study
from specprefill_repro.trials.schema import BlockReceipt


def block_receipts(project: Project, study: Study, cell: Cell, blocks: int) -> list[BlockReceipt]:
    """The receipts of the first blocks of a cell.

    Raises:
        ReproError: one is missing or was changed.
    """
    folder = project.block_receipts(study.name, cell.id)
    return [read_model(folder / f"{index}.json", BlockReceipt) for index in range(blocks)]
