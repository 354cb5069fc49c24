"""The machine-readable twins that lie beside the page: trials as Parquet and CSV, blocks, estimates, verdicts."""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from pydantic import BaseModel

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.estimates.schema import Estimates, estimates_json
from specprefill_repro.files import json_bytes, parse_model, read_limited
from specprefill_repro.report.data import ReportData
from specprefill_repro.trials.schema import BlockReceipt, TrialRecord
from specprefill_repro.trials.table import (
    MAX_FILE_BYTES,
    Trials,
    block_table,
    check_ids,
    parquet,
    parse_table,
    to_models,
)
from specprefill_repro.verdicts.schema import Verdicts

TRIALS, BLOCKS, ESTIMATES = "trials.parquet", "blocks.parquet", "estimates.json"
VERDICTS, CSV = "verdicts.json", "trials.csv"
ROWS: dict[str, type[BaseModel]] = {TRIALS: TrialRecord, BLOCKS: BlockReceipt}
FORMULA = r"^([=+\-@\t\r])"
"""How a text begins that a spreadsheet would take for a formula."""


def tables_of(trials: Trials, receipts: Sequence[BlockReceipt], estimates: Estimates) -> dict[str, bytes]:
    """The content, by name, of the files from which `verify` can recompute a page."""
    return {
        TRIALS: parquet(trials.table),
        BLOCKS: parquet(block_table(receipts)),
        ESTIMATES: estimates_json(estimates).encode(),
    }


def table_files(tables: Mapping[str, bytes], trials: Trials | None, verdicts: Verdicts) -> dict[str, bytes]:
    """The content, by name, of all files beside a page: `tables`, the verdicts, and a CSV of the trials.

    Args:
        trials: None where a spreadsheet can't hold them, and there is no CSV.
    """
    files = {**tables, VERDICTS: json_bytes(verdicts)}
    return files if trials is None else {**files, CSV: trials_csv(trials).encode()}


def recomputable(files: Mapping[str, bytes]) -> dict[str, str]:
    """The SHA-256, by name, of those files from which `verify` can recompute the page."""
    return {name: hashlib.sha256(files[name]).hexdigest() for name in (TRIALS, BLOCKS, ESTIMATES)}


def check_tables(folder: Path, data: ReportData, trials: Trials, receipts: Sequence[BlockReceipt]) -> tuple[str, ...]:
    """Hold the files that lie beside a page in `folder` against what the page gives; returns their names.

    A file that is not there is not missed: a page may be copied alone. Those that the page names by their hashes were
    checked when they were read.

    Raises:
        ReproError: one says something else than the page, or there is one that the page has not.
    """
    made = {} if data.beside else tables_of(trials, receipts, data.estimates)
    expected = table_files(made, trials if data.lists_trials else None, data.verdicts)
    found = [name for name in (*ROWS, ESTIMATES, VERDICTS, CSV) if (folder / name).is_file()]
    for name in found:
        if name not in data.beside and not _same(name, folder / name, expected.get(name)):
            raise ReproError(
                f"{name} says something else than the page beside it; the page itself follows from its records.",
                "The file was changed after it was made, or belongs to another report.",
                f"Do not use {name}; fetch it again from where the page was published, or make the report again.",
                Exit.VERIFICATION,
            )
    return tuple(sorted(found))


def _same(name: str, path: Path, expected: bytes | None) -> bool:
    """Byte for byte; of what may be written in several ways, value by value.

    Each version of Parquet's library packs a table in its own way, and a page does not keep the order of dictionaries.
    """
    if expected is None:
        return False
    found = read_limited(path, MAX_FILE_BYTES)
    try:
        if found != expected and name == ESTIMATES:
            one, other = (parse_model(path, content, Estimates) for content in (found, expected))
            return estimates_json(one).encode() == found and one == other
        if found != expected and name in ROWS:
            # A few bytes may stand for more equal rows than any memory holds.
            if pq.read_metadata(io.BytesIO(found)).num_rows != pq.read_metadata(io.BytesIO(expected)).num_rows:
                return False
            tables = [parse_table(path, content, ROWS[name]) for content in (found, expected)]
            return bool(tables[0].equals(tables[1]))
    except (ReproError, pa.ArrowException, OSError):
        return False
    return found == expected


def read_tables(folder: Path, data: ReportData) -> tuple[Estimates, Trials, tuple[BlockReceipt, ...]]:
    """Read what lies beside a page in `folder`: the estimates with all their pairs, the trials, the receipts.

    Raises:
        ReproError: a file is missing, is not the one that the page names by its hash, or is not what it should be.
    """
    contents = {name: _read_named(folder / name, data.beside.get(name)) for name in (TRIALS, BLOCKS, ESTIMATES)}
    trials = Trials(parse_table(folder / TRIALS, contents[TRIALS], TrialRecord))
    try:
        check_ids(trials)
        receipts = tuple(to_models(parse_table(folder / BLOCKS, contents[BLOCKS], BlockReceipt), BlockReceipt))
    except ValueError as error:
        raise ReproError(
            f"The records in {folder} could not be read: {error}",
            "The files were made by another program, or were changed together with the page.",
            "Do not trust the page; fetch it and its files again from where they were published.",
            Exit.VERIFICATION,
        ) from error
    return parse_model(folder / ESTIMATES, contents[ESTIMATES], Estimates), trials, receipts


def _read_named(path: Path, sha256: str | None) -> bytes:
    if not path.is_file():
        raise ReproError(
            f"{path} is missing, and the page can't be recomputed without it.",
            "A study of more than 1,000 trials has its records in files beside its page.",
            f"Fetch {path.name} from where the page was published, and put it beside the page.",
            Exit.VERIFICATION,
        )
    content = read_limited(path, MAX_FILE_BYTES)
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ReproError(
            f"{path} is not the file that the page was made from: its SHA-256 is {found}, the page names {sha256}.",
            "The file was changed, or belongs to another page.",
            "Fetch the page and its files again from where they were published.",
            Exit.VERIFICATION,
        )
    return content


def trials_csv(trials: Trials) -> str:
    """All trials in the order in which they ran, one a line.

    Columns are those of the Parquet file; lists and dictionaries are JSON. Text that a spreadsheet would take for a
    formula gets a leading apostrophe.
    """
    order = [("started_at", "ascending"), ("cell", "ascending"), ("position", "ascending")]
    table = trials.table.sort_by(order)
    columns = {name: _plain_column(table[name]) for name in table.column_names}
    file = io.BytesIO()
    pa.csv.write_csv(pa.table(columns), file)
    return file.getvalue().decode()


def _plain_column(column: pa.ChunkedArray) -> Any:
    if pa.types.is_string(column.type):
        return pc.replace_substring_regex(column, FORMULA, r"'\1")
    if pa.types.is_list(column.type) or pa.types.is_map(column.type):
        return pa.array([json.dumps(_plain_value(value), sort_keys=True) for value in column.to_pylist()], pa.string())
    return column


def _plain_value(value: Any) -> Any:
    return dict(value) if value and isinstance(value[0], tuple) else value
