"""Trials and blocks as tables: one row a record, one column a field (`evidence.tokens_kept` for a nested one).

Parquet on disk, and back without loss: columns and types follow from the models of schema.py. A study of 100,000 trials
is read from its store once, cell by cell, and from then on from one file.
"""

import io
import json
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cache, cached_property
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import atomic_file, content_id, read_limited
from specprefill_repro.trials.schema import BlockReceipt, TrialRecord

Model = TypeVar("Model", bound=BaseModel)

RECORD = "record"
"""The column with the hash under which the store holds a trial's record."""
SCALARS = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
COMPRESSION = "zstd"
ROWS_TOGETHER = 5_000
"""Compressed together; many small groups of rows make a file larger, and slower to read."""
MAX_FILE_BYTES = 1_000_000_000
MAX_UNPACKED_BYTES = 4_000_000_000
"""A file of a few kilobytes could else unpack to more than any memory holds."""


class Trials:
    """The trials of a study, in the order of its cells and blocks."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    @classmethod
    def of_records(cls, records: Sequence[TrialRecord]) -> "Trials":
        """Of records in memory, whose hashes are computed."""
        return cls(trial_table([content_id(record) for record in records], records))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def frame(self, names: Sequence[str]) -> pd.DataFrame:
        """The named columns, one value a trial; of lists their lengths. Missing values are NaN or None."""
        columns = {name: self.table[name] for name in names}
        for name, column in columns.items():
            if pa.types.is_list(column.type):
                columns[name] = pc.list_value_length(column)
        return pa.table(columns).to_pandas()

    def ids(self) -> list[str]:
        """Hashes of the records."""
        return [str(value) for value in self.table[RECORD].to_pylist()]

    def records(self) -> list[TrialRecord]:
        """All records; those of a large study take more memory than their table."""
        return to_models(self.table, TrialRecord)

    @cached_property
    def _cells(self) -> dict[str, pa.Array]:
        """Cell -> its rows."""
        rows: dict[str, list[int]] = {}
        for row, cell in enumerate(self.table["cell"].to_pylist()):
            rows.setdefault(cell, []).append(row)
        return {cell: pa.array(numbers) for cell, numbers in rows.items()}

    def of_cell(self, cell: str) -> list[TrialRecord]:
        """The records of one cell."""
        return to_models(self.table.take(self._cells[cell]), TrialRecord) if cell in self._cells else []


def trial_table(ids: Sequence[str], records: Sequence[TrialRecord]) -> pa.Table:
    """Records with the hashes under which the store holds them."""
    return pa.table([pa.array(ids, pa.string()), *_columns(records, TrialRecord)], schema=schema_of(TrialRecord))


def block_table(receipts: Sequence[BlockReceipt]) -> pa.Table:
    """Receipts, one a row."""
    return pa.table(list(_columns(receipts, BlockReceipt)), schema=schema_of(BlockReceipt))


def schema_of(model: type[BaseModel]) -> pa.Schema:
    """The columns of a model's table; for trials, `record` and then the fields of the record."""
    return pa.schema([*([(RECORD, pa.string())] if model is TrialRecord else []), *_fields(model)])


def parquet(table: pa.Table) -> bytes:
    """A table as the content of a Parquet file."""
    file = io.BytesIO()
    pq.write_table(table, file, compression=COMPRESSION)
    return file.getvalue()


@contextmanager
def table_file(path: Path, model: type[BaseModel]) -> Iterator[Callable[[pa.Table], None]]:
    """Yield a function that adds rows of a model to the Parquet file `path`, which is replaced at the end."""
    schema = schema_of(model)
    with atomic_file(path) as file, pq.ParquetWriter(file, schema, compression=COMPRESSION) as writer:
        waiting = [schema.empty_table()]

        def write() -> None:
            writer.write_table(pa.concat_tables(waiting))
            waiting.clear()

        def add(table: pa.Table) -> None:
            waiting.append(table)
            if sum(len(part) for part in waiting) >= ROWS_TOGETHER:
                write()

        yield add
        if waiting:
            write()


def read_table(path: Path, model: type[BaseModel]) -> pa.Table:
    """Read a Parquet file with the rows of a model.

    Raises:
        ReproError: missing, damaged, of another model, or larger than 1 GB (4 GB when it is unpacked).
    """
    return parse_table(path, read_limited(path, MAX_FILE_BYTES), model)


def parse_table(path: Path, content: bytes, model: type[BaseModel], columns: Sequence[str] | None = None) -> pa.Table:
    """The content of the Parquet file `path`.

    Args:
        columns: all that are read; by default every one.

    Raises:
        ReproError: as `read_table`.
    """
    try:
        file = pq.ParquetFile(io.BytesIO(content))
        groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
        if sum(group.total_byte_size for group in groups) > MAX_UNPACKED_BYTES:
            raise ValueError(f"it would unpack to more than {MAX_UNPACKED_BYTES:,} bytes")
        if not file.schema_arrow.equals(schema_of(model)):
            raise ValueError(f"its columns are not those of a {model.__name__}")
        return file.read(None if columns is None else [*columns])
    except (pa.ArrowException, ValueError, OSError) as error:
        raise ReproError(
            f"{path} is not a table that can be read: {error}",
            "The file was edited, damaged, or written by another program or another version of this package.",
            f"Delete it and run the same command again: rm '{path}'",
            Exit.VERIFICATION,
        ) from error


def to_models(table: pa.Table, model: type[Model]) -> list[Model]:
    """The rows of a table as models.

    Raises:
        ValueError: a value is not one that the model allows.
    """
    return [model.model_validate_json(json.dumps(row)) for row in _rows(table, model)]


def check_ids(trials: Trials) -> None:
    """Check that each row is the record that its hash names.

    Raises:
        ValueError: one is not; names its row.
    """
    ids = trials.ids()
    for start in range(0, len(trials), 1000):
        for number, record in enumerate(to_models(trials.table.slice(start, 1000), TrialRecord), start):
            if content_id(record) != ids[number]:
                raise ValueError(f"row {number + 1} is not the record {ids[number]}")


def _fields(*models: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """(name, type) of the columns of a field that holds one of `models`; those they share stand once."""
    for name, (nested, kind) in _layout(models).items():
        if nested:
            yield from _fields(*nested, prefix=f"{prefix}{name}.")
        else:
            yield prefix + name, kind


def _columns(rows: Sequence[BaseModel | None], *models: type[BaseModel]) -> Iterator[pa.Array]:
    layout = _layout(models)
    nothing = dict.fromkeys(layout)
    fields = [nothing if row is None else nothing | vars(row) for row in rows]
    for name, (nested, kind) in layout.items():
        values = list(map(itemgetter(name), fields))
        if nested:
            yield from _columns(values, *nested)
        else:
            yield pa.array(values, kind)


def _rows(table: pa.Table, *models: type[BaseModel], prefix: str = "") -> list[dict[str, Any] | None]:
    columns: dict[str, list[Any]] = {}
    for name, (nested, _) in _layout(models).items():
        if nested:
            columns[name] = list(_rows(table, *nested, prefix=f"{prefix}{name}."))
        else:
            column = table[prefix + name]
            values = column.to_pylist()
            if pa.types.is_map(column.type):
                values = [None if value is None else dict(value) for value in values]
            columns[name] = values
    rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    return [_as_one_of(models, row) for row in rows]


def _as_one_of(models: tuple[type[BaseModel], ...], row: dict[str, Any]) -> dict[str, Any] | None:
    """The fields of the first model for which none is missing; None when there is none: then nothing was there."""
    for model in models:
        needed = (name for name, field in model.model_fields.items() if not _may_be_none(field.annotation))
        if all(row[name] is not None for name in needed):
            return {name: row[name] for name in model.model_fields}
    return None


@cache
def _layout(models: tuple[type[BaseModel], ...]) -> dict[str, tuple[tuple[type[BaseModel], ...], pa.DataType | None]]:
    """Field -> the models that it may hold, or else the type of its column."""
    fields = {name: field.annotation for model in models for name, field in model.model_fields.items()}
    return {name: (_nested(kind), None if _nested(kind) else _arrow(kind)) for name, kind in fields.items()}


def _alternatives(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return list(typing.get_args(annotation))
    return [annotation]


def _may_be_none(annotation: Any) -> bool:
    return type(None) in _alternatives(annotation)


def _nested(annotation: Any) -> tuple[type[BaseModel], ...]:
    """The models that a field may hold."""
    return tuple(kind for kind in _alternatives(annotation) if isinstance(kind, type) and issubclass(kind, BaseModel))


def _arrow(annotation: Any) -> pa.DataType:
    """The column type of a field.

    Raises:
        TypeError: there is none.
    """
    kinds = [kind for kind in _alternatives(annotation) if kind is not type(None)]
    (kind,) = kinds if len(kinds) == 1 else (annotation,)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _arrow(arguments[0])
    if origin is tuple:
        return pa.list_(_arrow(arguments[0]))
    if origin is dict:
        return pa.map_(_arrow(arguments[0]), _arrow(arguments[1]))
    if origin is Literal:
        kind = type(arguments[0])
    if kind in SCALARS:
        return SCALARS[kind]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return pa.string()
    raise TypeError(f"no column type for {annotation}")
