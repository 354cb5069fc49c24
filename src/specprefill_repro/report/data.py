"""What a report is made of, and the block of the page that carries it, so that anybody can recompute the page."""

import base64
import bz2
import hashlib
import json
import re

from pydantic import Field, ValidationError

from specprefill_repro.engines.history import EngineHistory
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.estimates.schema import Estimates
from specprefill_repro.files import canonical_json, validation_summary
from specprefill_repro.gate.schema import GateResult
from specprefill_repro.models.schema import Manifest
from specprefill_repro.report.version import other_version
from specprefill_repro.schema import Frozen
from specprefill_repro.study.schema import Study
from specprefill_repro.trials.schema import BlockReceipt, TrialRecord
from specprefill_repro.verdicts.schema import Verdicts

LISTED_TRIALS = 1000
"""A page lists and carries at most this many; a larger study is shown cell by cell, and its records lie beside it."""
MAX_EMBEDDED_BYTES = 50_000_000


class ReportData(Frozen):
    """Everything that a page shows. The same data give the same bytes."""

    study: Study
    estimates: Estimates
    verdicts: Verdicts
    records: tuple[TrialRecord, ...]
    """Of blocks that count, in any order; none when they lie beside the page."""
    receipts: tuple[BlockReceipt, ...]
    """None either then."""
    gates: dict[str, GateResult]
    """By pair; a pair whose gate never ran has none."""
    models: dict[str, Manifest]
    """By model name."""
    facts: dict[str, str]
    """Machine, versions and pins, as they are to be shown."""
    beside: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of the files beside the page that hold what is too much for it, by name; none when it carries all."""

    history: EngineHistory | None = Field(default=None, exclude_if=lambda history: history is None)
    """What is known of releases of servers, where the study runs one or asks about them."""

    @property
    def pairs(self) -> tuple[str, ...]:
        """Names of the pairs, in the order of the study's comparisons.

        The page never follows the order of a dictionary, which the data block does not keep.
        """
        return tuple(dict.fromkeys([*(cell.pair for cell in self.estimates.cells), *sorted(self.study.pairs)]))

    @property
    def lists_trials(self) -> bool:
        return not self.beside


class ReportReceipt(Frozen):
    """Says that a report was made. The page itself is replaced once the new one is whole, and is never deleted."""

    files: dict[str, str]
    """SHA-256 of the page and of the files beside it, by their path below the project."""


def embedded(data: ReportData) -> str:
    """Return the JSON text of the page's data block.

    `data` is base64 of bzip2 of the canonical JSON of `ReportData` (without the pairs of the estimates when the records
    lie beside the page), `sha256` is of that JSON. Compressed, because 400 records take
    about 800 kB; bzip2, because its output for given bytes never changes. None of the characters that can end a script
    block or start a comment occurs in base64.
    """
    if not data.lists_trials:
        cells = tuple(cell.model_copy(update={"pairs": ()}) for cell in data.estimates.cells)
        estimates = data.estimates.model_copy(update={"cells": cells})
        data = data.model_copy(update={"estimates": estimates})
    content = canonical_json(data.model_dump(mode="json"))
    return canonical_json(
        {
            "data": base64.b64encode(bz2.compress(content)).decode(),
            "encoding": "base64 of bzip2 of JSON (UTF-8)",
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    ).decode()


def read_embedded(page: str) -> ReportData:
    """Return the data that a page carries.

    Raises:
        ReproError: there is no data block, it was damaged or edited, or it is larger than 50 MB.
    """
    try:
        blocks = re.findall(r'<script type="application/json" id="records">(.*?)</script>', page, re.DOTALL)
        (block,) = blocks
        envelope = json.loads(block)
        decompressor = bz2.BZ2Decompressor()
        content = decompressor.decompress(base64.b64decode(envelope["data"], validate=True), MAX_EMBEDDED_BYTES)
        if not decompressor.eof or decompressor.unused_data:
            raise ValueError("it is cut short, too long, or larger than 50 MB")
        if hashlib.sha256(content).hexdigest() != envelope["sha256"]:
            raise ValueError("its SHA-256 is not the one that stands beside it")
    except (ValueError, KeyError, TypeError, OSError, EOFError, RecursionError) as error:
        raise ReproError(
            f"The page's data block could not be read: {error}",
            "The page was edited, cut short, or is not a report of this package.",
            "Fetch the page again from where it was published.",
            Exit.VERIFICATION,
        ) from error
    return _report_data(content)


def _report_data(content: bytes) -> ReportData:
    try:
        return ReportData.model_validate_json(content)
    except ValidationError as error:
        other = other_version(_facts(content))
        raise ReproError(
            f"The page's data block could not be read: {validation_summary(error)}",
            f"{other} Nothing was recomputed: its data have another form than this one reads."
            if other
            else "The page was edited, or is not a report of this package.",
            "Check it with the version that made it." if other else "Fetch the page again from where it was published.",
            Exit.VERIFICATION,
        ) from error


def _facts(content: bytes) -> dict[str, str]:
    """What data that may have any form say of the version that wrote them."""
    try:
        facts = json.loads(content)["facts"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}
