"""Recompute a page from the records that it carries, and name the first place where it says something else.

Seven steps, each on what the one before has proved: the data block is whole, and so are the files beside the page that
hold the records of a large study; each record is the one that its receipt names; the blocks are those that the study
and its stopping rule call for, none left out or added, in the order of their coins; the estimates follow from the
records; the verdicts follow from the estimates and the cards; the page is, byte for byte, what its data give; and so
are the tables that lie beside it. Nothing of the page is run, and nothing is fetched.

What cannot be recomputed: the KL divergences, since the log-probabilities of a whole vocabulary are too large for a
page. Each is read from the estimates and belongs to two records whose hashes are checked.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import BaseModel

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.estimates.build import estimate_study
from specprefill_repro.estimates.pairing import Twins
from specprefill_repro.estimates.stopping import blocks_to_run, look
from specprefill_repro.files import content_id, read_limited
from specprefill_repro.gate.schema import GateResult
from specprefill_repro.report.build import render_report
from specprefill_repro.report.data import ReportData, read_embedded
from specprefill_repro.report.tables import check_tables, read_tables
from specprefill_repro.report.version import other_version
from specprefill_repro.study.plan import Cell, block_trials, plan_cells
from specprefill_repro.trials.schema import BlockReceipt, Evidence
from specprefill_repro.trials.table import RECORD, Trials
from specprefill_repro.verdicts.build import build_verdicts
from specprefill_repro.verdicts.matching import facts_of

MAX_PAGE_BYTES = 20_000_000
MAX_TOKENS = 2_000_000
MAX_POSITIONS = 50_000_000
"""Listed by all records together; a hostile page could name a range that no memory holds."""

FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    pa.ArrowException,
)
"""What values that nobody foresaw do to the computations of a page that is not ours."""

WITH_ITS_OWN = "Check it with the version that made it: specprefill-repro verify, in a checkout of that version."


@dataclass(frozen=True)
class Verified:
    """How much was recomputed."""

    records: int
    cells: int
    verdicts: int
    divergences: int
    """KL values that were read, not recomputed."""
    beside: tuple[str, ...]
    """Files beside the page that the records were read from; none when the page carries them."""
    tables: tuple[str, ...]
    """All files beside the page that were held against it."""


def verify_page(path: Path) -> Verified:
    """Recompute a page.

    Raises:
        ReproError: it can't be read, carries no records, or says something else than its records; names the place.
    """
    try:
        return _recompute(path)
    except FAULTS as error:
        raise ReproError(
            f"{path} could not be recomputed: {type(error).__name__}: {' '.join(str(error).split())[:200]}",
            "A value in its data is none that this package writes: the page was edited, damaged, or made to do harm.",
            "Do not trust the page. If this package made it, here and from its own records, report the fault.",
            Exit.VERIFICATION,
        ) from error


def _recompute(path: Path) -> Verified:
    content = read_limited(path, MAX_PAGE_BYTES)
    try:
        page = content.decode()
    except UnicodeDecodeError as error:
        raise _differs(f"byte {error.start} of the page", "text in UTF-8", "another byte") from error
    data = read_embedded(page)
    _check_size(data)
    trials, receipts = _carried(data), data.receipts
    if data.beside:
        estimates, trials, receipts = read_tables(path.parent, data)
        data = data.model_copy(update={"estimates": estimates})
    if max(trials.table["prompt.tokens"].to_pylist(), default=0) > MAX_TOKENS:
        raise _too_large("a record names more tokens than a prompt has")
    _check_records(trials, receipts)
    other = other_version(data.facts)
    try:
        _check_blocks(data, trials, receipts)
        divergences = _check_estimates(data, trials, receipts)
        _check_verdicts(data)
    except ReproError as error:
        if other is None:
            raise
        why = f"{other} Its numbers and verdicts were recomputed by the rules of this one, and are not the same."
        raise ReproError(error.what, why, WITH_ITS_OWN, error.exit_code) from error
    _check_bytes(page, render_report(data, trials), other)
    return Verified(
        records=len(trials),
        cells=len(data.estimates.cells),
        verdicts=len(data.verdicts.verdicts),
        divergences=divergences,
        beside=tuple(sorted(data.beside)),
        tables=_check_tables(path.parent, data, trials, receipts, other),
    )


def _check_tables(
    folder: Path, data: ReportData, trials: Trials, receipts: Sequence[BlockReceipt], other: str | None
) -> tuple[str, ...]:
    try:
        return check_tables(folder, data, trials, receipts)
    except ReproError as error:
        if other is None:
            raise
        raise ReproError(error.what, f"{other} It may write other columns.", WITH_ITS_OWN, error.exit_code) from error


def _check_size(data: ReportData) -> None:
    positions = 0
    for number, record in enumerate(data.records):
        if isinstance(record.evidence, Evidence):
            positions += sum(max(0, end - start) for start, end in record.evidence.kept_ranges)
        if record.prompt.tokens > MAX_TOKENS or positions > MAX_POSITIONS:
            raise _too_large(f"record {number + 1} names more positions than a prompt has")


def _carried(data: ReportData) -> Trials:
    try:
        return Trials.of_records(data.records)
    except (pa.ArrowException, OverflowError) as error:
        raise _too_large(f"a number in its records is no number of a trial ({error})") from error


def _too_large(what: str) -> ReproError:
    return ReproError(
        f"The page is not verified: {what}.",
        "No study of this package is that large; the page was not made by it.",
        "Do not trust the page.",
        Exit.VERIFICATION,
    )


def _check_records(trials: Trials, receipts: Sequence[BlockReceipt]) -> None:
    """Every record is named by the receipt of its block, in its place, and every receipt by its own parts."""
    named: dict[str, str] = {}
    for receipt in receipts:
        place = f"receipt of block {receipt.block} of {receipt.cell}"
        if content_id(dict(receipt.parts)) != receipt.fingerprint:
            raise _differs(place, "the fingerprint of its parts", f"fingerprint {receipt.fingerprint[:12]}...")
        for position, identity in enumerate(receipt.records):
            named[identity] = f"trial {position + 1} of block {receipt.block} of {receipt.cell}"
    columns = (trials.table[name].to_pylist() for name in (RECORD, "cell", "block", "position"))
    for number, (identity, cell, block, position) in enumerate(zip(*columns, strict=True)):
        own = f"trial {position + 1} of block {block} of {cell}"
        if identity not in named:
            where = f"record {number + 1} ({own})"
            raise _differs(where, "content with a hash that a receipt names", f"content with the hash {identity}")
        if named.pop(identity) != own:
            raise _differs(f"record {number + 1}", f"the record of {own} in its own block's receipt", "another place")
    if named:
        raise _differs(next(iter(named.values())), "a record", "none")


def _check_blocks(data: ReportData, trials: Trials, receipts: Sequence[BlockReceipt]) -> None:
    """No block was left out or added: each cell has those that the study plans and its own looks asked for."""
    by_cell: dict[str, list[BlockReceipt]] = {}
    for receipt in sorted(receipts, key=lambda receipt: receipt.block):
        by_cell.setdefault(receipt.cell, []).append(receipt)
    columns = (trials.table[name].to_pylist() for name in ("cell", "block", "position", "treated"))
    arms = {(cell, block, position): treated for cell, block, position, treated in zip(*columns, strict=True)}
    for cell in plan_cells(data.study):
        own, gate = by_cell.pop(cell.id, []), data.gates.get(cell.pair)

        def stops(
            blocks: int, cell: Cell = cell, own: list[BlockReceipt] = own, gate: GateResult | None = gate
        ) -> bool:
            seen = [record for record in trials.of_cell(cell.id) if record.block < blocks]
            return gate is None or look(cell, seen, own[:blocks], gate).stop

        wanted, told = range(blocks_to_run(cell, stops)), [receipt.block for receipt in own]
        if told != [*wanted]:
            raise _differs(f"the blocks of {cell.id}", ", ".join(map(str, wanted)), ", ".join(map(str, told)) or "none")
        for block in wanted:
            for trial in block_trials(data.study.seed, cell, block):
                if arms.get((cell.id, block, trial.position), trial.treated) != trial.treated:
                    place = f"trial {trial.position + 1} of block {block} of {cell.id}"
                    raise _differs(place, "the arm that the study's coin gives it", "the other one")
    for name in by_cell:
        raise _differs(f"the blocks of {name}", "none: the study has no such cell", "a block")


def _check_estimates(data: ReportData, trials: Trials, receipts: Sequence[BlockReceipt]) -> int:
    """Recompute the estimates; return how many KL values were taken from those that were told."""
    told = {
        (pair.dense_record, pair.treated_record): pair.kl_nats for cell in data.estimates.cells for pair in cell.pairs
    }
    read = 0

    def divergence(twins: Twins) -> float | None:
        nonlocal read
        pair = twins.dense_record, twins.treated_record
        if pair not in told:
            raise _differs(f"the estimate of {twins.dense.cell}", f"a pair of record {pair[0][:12]}", "none")
        value = told[pair]
        if not (isinstance(twins.dense.evidence, Evidence) and isinstance(twins.treated.evidence, Evidence)):
            if value is not None:
                raise _differs(f"the KL of record {pair[0][:12]}", "none: a server tells no distribution", str(value))
            return None
        read += 1
        if value is None or not (math.isfinite(value) and value >= 0):
            raise _differs(f"the KL of record {pair[0][:12]}", "a number from 0 on", str(value))
        return value

    found = estimate_study(data.study, trials.of_cell, receipts, data.gates, divergence)
    _compare("estimates", found, data.estimates)
    return read


def _check_verdicts(data: ReportData) -> None:
    found = build_verdicts(
        data.study,
        data.estimates,
        [verdict.claim for verdict in data.verdicts.verdicts],
        facts_of(data.estimates, data.models),
        data.verdicts.contradictions,
    )
    _compare("verdicts", found, data.verdicts)


def _compare(name: str, recomputed: BaseModel, told: BaseModel) -> None:
    difference = next(_differences(name, recomputed.model_dump(mode="json"), told.model_dump(mode="json")), None)
    if difference is not None:
        raise _differs(*difference)


def _differences(place: str, recomputed: Any, told: Any) -> Iterator[tuple[str, str, str]]:
    """(place, recomputed, told) of each difference; cells and verdicts are named by their id."""
    if isinstance(recomputed, dict) and isinstance(told, dict):
        for key in sorted(set(recomputed) | set(told)):
            yield from _differences(f"{place}.{key}", recomputed.get(key), told.get(key))
    elif isinstance(recomputed, list) and isinstance(told, list):
        for number, (ours, theirs) in enumerate(zip_longest(recomputed, told)):
            yield from _differences(f"{place}[{_label(theirs) or number}]", ours, theirs)
    elif recomputed != told:
        yield place, _short(recomputed), _short(told)


def _label(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    claim = value.get("claim")
    label = value.get("cell") or value.get("prompt") or (claim.get("id") if isinstance(claim, dict) else None)
    return label if isinstance(label, str) else None


def _check_bytes(page: str, rendered: str, other: str | None) -> None:
    if page == rendered:
        return
    theirs, ours = page.splitlines(), rendered.splitlines()
    line = next(n for n, (a, b) in enumerate(zip_longest(theirs, ours)) if a != b) if theirs != ours else len(ours)
    there, here = (lines[line] if line < len(lines) else "" for lines in (theirs, ours))
    start = next((n for n, (a, b) in enumerate(zip_longest(there, here)) if a != b), 0)
    section = next((text for text in reversed(theirs[:line]) if "<section" in text or "<h2" in text), "the head")
    place = f"line {line + 1}, column {start + 1} of the page, after {_short(section.strip())}"
    if other is None:
        raise _differs(place, _excerpt(here, start), _excerpt(there, start))
    raise ReproError(
        f"{other} It would draw the page differently, first at {place}: {_excerpt(here, start)}, and not "
        f"{_excerpt(there, start)}.",
        "The page's records are whole, and its numbers and verdicts were recomputed from them and are equal; only how "
        "the page shows them could not be checked.",
        WITH_ITS_OWN,
        Exit.VERIFICATION,
    )


def _excerpt(text: str, start: int) -> str:
    return repr(text[max(0, start - 20) : start + 40])


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _differs(place: str, recomputed: str, told: str) -> ReproError:
    return ReproError(
        f"The page does not follow from its records: at {place}, it should be {recomputed}, and is {told}.",
        "The page, or the data in it, was changed after it was made.",
        "Do not trust the page; fetch it again from where it was published.",
        Exit.VERIFICATION,
    )
