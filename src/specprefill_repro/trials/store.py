"""The content-addressed store of records, under results/store.

Records lie under the hash of their content and are never changed or deleted: `sha256sum` of a record gives its name.
A block's receipt lies under the fingerprint of everything that can change its numbers, and is written last: a block
without one does not exist. Snakemake's own outputs are copies of receipts, so that a rerun that fails never destroys a
measurement.
"""

import array
import hashlib
import itertools
import json
from pathlib import Path

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import (
    canonical_json,
    content_id,
    explain_write_error,
    parse_model,
    read_limited,
    read_model,
    sync_folder,
    write_bytes,
    write_json,
)
from specprefill_repro.trials.schema import BlockReceipt, Evidence, TrialRecord

MAX_RECORD_BYTES = 10_000_000
MAX_LOGITS_BYTES = 4 * 2_000_000
MAX_LOG_BYTES = 10_000_000


class Store:
    """Records, log-probabilities, servers' logs and block receipts below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # Two files a trial are read by their names as text: to make paths takes as long as to read what they lead to.
    def _record_name(self, identity: str) -> str:
        return f"{self.folder}/records/{identity[:2]}/{identity}.json"

    def record_path(self, identity: str) -> Path:
        return Path(self._record_name(identity))

    def _log_probabilities_name(self, sha256: str) -> str:
        return f"{self.folder}/logits/{sha256}.f32"

    def log_probabilities_path(self, sha256: str) -> Path:
        return Path(self._log_probabilities_name(sha256))

    def server_log_path(self, sha256: str) -> Path:
        """A server's whole log, gzip of UTF-8 text."""
        return self.folder / "server-logs" / f"{sha256}.txt.gz"

    def receipt_path(self, fingerprint: str) -> Path:
        return self.folder / "blocks" / f"{fingerprint}.json"

    def put_record(self, record: TrialRecord) -> str:
        """Store a record and return its content hash; storing it again changes nothing."""
        identity = content_id(record)
        path = self.record_path(identity)
        if not path.exists():
            write_bytes(path, canonical_json(record.model_dump(mode="json")))
        return identity

    def get_record(self, identity: str) -> TrialRecord:
        """Read a record and check it against its name.

        Raises:
            ReproError: it is missing, or was changed.
        """
        path = self._record_name(identity)
        content = read_limited(path, MAX_RECORD_BYTES)
        record = parse_model(path, content, TrialRecord)
        # Of the file, not of the model: a field that was added since has no place in the hash of an old record.
        found = hashlib.sha256(content).hexdigest()
        if found != identity:
            # Once, records were written with line breaks.
            found = content_id(json.loads(content))
        if found != identity:
            raise ReproError(
                f"The record {path} was changed: its content has the hash {found}.",
                "Records are never edited; the file was damaged or altered by hand.",
                f"Remove it and the block is measured again: rm '{path}'",
                Exit.VERIFICATION,
            )
        return record

    def adopt(self, record: TrialRecord, logits_file: Path, log_file: Path) -> None:
        """Move the file that the engine wrote besides its measurement to its place."""
        if isinstance(record.evidence, Evidence):
            file, path = logits_file, self.log_probabilities_path(record.evidence.logits_sha256)
        else:
            file, path = log_file, self.server_log_path(record.evidence.log_sha256)
        path.parent.mkdir(parents=True, exist_ok=True)
        file.replace(path)
        sync_folder(path.parent)

    def check_artifact(self, record: TrialRecord) -> None:
        """Check the file that belongs to a record.

        Raises:
            ReproError: missing, or not what its name says.
        """
        if isinstance(record.evidence, Evidence):
            self.log_probabilities(record.evidence.logits_sha256)
        else:
            sha256 = record.evidence.log_sha256
            _read_named(self.server_log_path(sha256), sha256, MAX_LOG_BYTES)

    def log_probabilities(self, sha256: str) -> "array.array[float]":
        """Float32 natural log-probabilities of a first token, one a vocabulary entry.

        Raises:
            ReproError: missing, or not what its name says.
        """
        content = _read_named(self._log_probabilities_name(sha256), sha256, MAX_LOGITS_BYTES)
        return array.array("f", content)

    def put_receipt(self, receipt: BlockReceipt) -> None:
        write_json(self.receipt_path(receipt.fingerprint), receipt)

    def find_receipt(self, fingerprint: str) -> BlockReceipt | None:
        """The receipt of a block that was measured before, if it and all it names are whole; else None."""
        try:
            return self.get_receipt(fingerprint)
        except ReproError:
            return None

    def get_receipt(self, fingerprint: str) -> BlockReceipt | None:
        """The receipt of a block that was measured before; None when there is none.

        Raises:
            ReproError: it, or something that it names, is missing or damaged.
        """
        path = self.receipt_path(fingerprint)
        if not path.exists():
            return None
        receipt = read_model(path, BlockReceipt)
        for identity in receipt.records:
            self.check_artifact(self.get_record(identity))
        if receipt.fingerprint != fingerprint:
            raise ReproError(
                f"The receipt {path} is of another block: its fingerprint is {receipt.fingerprint}.",
                "The file was renamed or altered by hand.",
                f"Remove it and the block is measured again: rm '{path}'",
                Exit.VERIFICATION,
            )
        return receipt

    def set_aside(self, fingerprint: str) -> Path:
        """Rename a receipt to NAME.damaged (.damaged-2, ...), so that none replaces another, and return its new path.

        It names the block's records, which stay where they are.

        Raises:
            ReproError: the folder may not be written.
        """
        path = self.receipt_path(fingerprint)
        names = itertools.chain([f"{path.name}.damaged"], (f"{path.name}.damaged-{n}" for n in itertools.count(2)))
        aside = next(place for place in map(path.with_name, names) if not place.exists())
        try:
            path.replace(aside)
        except OSError as error:
            explain_write_error(error, aside)
        sync_folder(path.parent)
        return aside


def _read_named(path: Path | str, sha256: str, limit: int) -> bytes:
    content = read_limited(path, limit)
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ReproError(
            f"{path} was changed: its content has the hash {found}.",
            "The file was damaged or altered by hand.",
            f"Remove it and the block is measured again: rm '{path}'",
            Exit.VERIFICATION,
        )
    return content
