"""Read the blocks of a study from its store and measure its cells, several at a time when there are many trials."""

import gc
import io
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from specprefill_repro.estimates.build import Measured, measure_cell
from specprefill_repro.estimates.pairing import divergence_of
from specprefill_repro.estimates.schema import Look
from specprefill_repro.estimates.stopping import blocks_to_run
from specprefill_repro.files import read_model
from specprefill_repro.gate.schema import GateResult
from specprefill_repro.project import Project
from specprefill_repro.study.plan import Cell, plan_cells
from specprefill_repro.study.schema import Study
from specprefill_repro.trials.parent import end_with, name_run
from specprefill_repro.trials.receipts import block_receipts
from specprefill_repro.trials.store import Store
from specprefill_repro.trials.table import block_table, trial_table

MANY_TRIALS = 5_000
"""Below this many, more processes take longer to start than they save."""


@dataclass(frozen=True)
class ReadCell:
    """One cell: what its trials say, and the trials and blocks themselves as tables."""

    measured: Measured
    trials: pa.Table
    blocks: pa.Table

    def __reduce__(self) -> tuple[Any, ...]:
        # Arrow's own stream: pickled column by column, a table takes five times as long.
        return _of_streams, (self.measured, _stream(self.trials), _stream(self.blocks))


def _stream(table: pa.Table) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


def _of_streams(measured: Measured, trials: bytes, blocks: bytes) -> ReadCell:
    return ReadCell(measured, *(pa.ipc.open_stream(stream).read_all() for stream in (trials, blocks)))


def read_cells(project: Project, study: Study, gates: Mapping[str, GateResult]) -> Iterator[ReadCell]:
    """The cells of a study in its order, read by as many processes as there are cores when it is large.

    Raises:
        ReproError: a receipt or a record is missing or was changed.
    """
    cells = plan_cells(study)
    read = partial(_read_cell, project, study, gates)
    if 4 * sum(cell.blocks for cell in cells) < MANY_TRIALS:
        yield from map(read, cells)
        return
    me = name_run(os.getpid())
    with ProcessPoolExecutor(initializer=_begin, initargs=(me,)) as pool:
        yield from pool.map(read, cells)


def _begin(reader: str) -> None:
    end_with(reader)
    # Records hold no cycles, and looking for some among so many takes a quarter of the time.
    gc.disable()


def _read_cell(project: Project, study: Study, gates: Mapping[str, GateResult], cell: Cell) -> ReadCell:
    receipts = block_receipts(project, study, cell, _blocks_run(project, study, cell))
    store = Store(project.store)
    ids = [identity for receipt in receipts for identity in receipt.records]
    records = [store.get_record(identity) for identity in ids]
    divergence = divergence_of(lambda sha256: np.frombuffer(store.log_probabilities(sha256), dtype=np.float32))
    measured = measure_cell(study, cell, records, receipts, gates.get(cell.pair), divergence)
    return ReadCell(measured, trial_table(ids, records), block_table(receipts))


def _blocks_run(project: Project, study: Study, cell: Cell) -> int:
    """How many blocks of a cell belong to the study, as its looks decided."""
    return blocks_to_run(cell, lambda blocks: read_model(project.stopping(study.name, cell.id, blocks), Look).stop)
