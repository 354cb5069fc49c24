"""Bundles of others: checked as if an enemy had made them, then kept under results/imported/HASH."""

import hashlib
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from specprefill_repro.bundles.archive import read_archive, write_archive
from specprefill_repro.bundles.contents import (
    BESIDE_THE_PAGE,
    LOCK_FACT,
    PAGE,
    SUMMARY,
    SUMS,
    Files,
    checksums,
    identity_of,
    read_report,
    read_summary,
    settings_files,
)
from specprefill_repro.bundles.crate import METADATA, check_crate, crate_metadata
from specprefill_repro.bundles.schema import Summary, summary_of
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import explain_write_error, json_bytes, write_bytes
from specprefill_repro.project import Project
from specprefill_repro.report.tables import CSV

NEEDED = (PAGE, SUMMARY, SUMS, METADATA, "trials.parquet", "blocks.parquet", "estimates.json", "verdicts.json")
MAY_BE = frozenset({*NEEDED, *BESIDE_THE_PAGE, "claims.json", "models.json", "gates.json", "study.yaml"})
LOCK = re.compile(r"envs/[A-Za-z0-9][\w.-]*\.lock", re.ASCII)
PIPELINE_LOCK = "envs/pipeline.lock"
ARCHIVE = "bundle.zip"


@dataclass(frozen=True)
class Imported:
    """A bundle that was taken."""

    folder: Path
    summary: Summary
    unchecked: tuple[str, ...]
    """What nothing else in the bundle says the content of: lock files of engines, and words of another version."""


def import_bundle(project: Project, file: Path) -> Imported:
    """Check a bundle and keep it.

    Every size, name and hash is checked, every estimate and verdict recomputed from the records, and the page and its
    tables made anew and compared, before anything lies under the name that others read.

    Raises:
        ReproError: a check failed; nothing is kept then.
    """
    files = read_archive(file)
    _check_files(file, files)
    target = project.results / "imported" / identity_of(files)
    draft = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=target.parent, prefix=".new-"))
        for name in (PAGE, *BESIDE_THE_PAGE):
            if name in files:
                write_bytes(draft / name, files[name])
        found = _recompute(file, draft / PAGE, files, target)
        # Written anew from what was checked: what else the file may have held between its entries is not kept.
        write_bytes(draft / ARCHIVE, write_archive(files))
        draft.chmod(0o755)
        if target.exists():
            return found
        draft.replace(target)
    except OSError as error:
        explain_write_error(error, target)
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
    return found


def _check_files(file: Path, files: Files) -> None:
    """The files are those of a bundle, and each is the one that SHA256SUMS names."""
    missing = [name for name in NEEDED if name not in files]
    if missing:
        raise refused(file, f"{missing[0]} is missing")
    other = [name for name in files if name not in MAY_BE and not LOCK.fullmatch(name)]
    if other:
        raise refused(file, f"it holds {other[0][:100]!r}, which no bundle has")
    told, found = (set(text.decode(errors="replace").splitlines()) for text in (files[SUMS], checksums(files)))
    if checksums(files) != files[SUMS]:
        wrong = sorted(line.partition("  ")[2] for line in told ^ found)
        raise refused(file, f"SHA256SUMS and the files differ: {', '.join(dict.fromkeys(wrong))[:300] or 'its form'}")
    check_crate(files[METADATA], {name: content for name, content in files.items() if name != SUMS})


def _recompute(file: Path, page: Path, files: Files, target: Path) -> Imported:
    """Hold each file against the page, which lies with its tables in a folder of its own."""
    try:
        report = read_report(page)
        told = summary_of(report.data, report.trials)
    except ReproError:
        raise
    except Exception as error:
        # Whatever a made-up page makes the analysis stumble over, it is no report of this package.
        raise refused(file, f"its records can't be analysed ({type(error).__name__})") from error
    try:
        summary = read_summary(files)
    except ValidationError as error:
        raise refused(file, f"{SUMMARY} says nothing that a bundle says") from error
    if files[SUMMARY] != json_bytes(told.model_copy(update={"package": summary.package})):
        raise refused(file, f"{SUMMARY} says something else than the records")
    if report.data.lists_trials and CSV not in files:
        raise refused(file, f"{CSV} is missing")
    for name, content in settings_files(report.data).items():
        if files.get(name) != content:
            raise refused(file, f"{name} says something else than the page")
    lock = report.data.facts.get(LOCK_FACT)
    unchecked = {name for name in files if LOCK.fullmatch(name)}
    if lock is not None and PIPELINE_LOCK in unchecked:
        if hashlib.sha256(files[PIPELINE_LOCK]).hexdigest() != lock:
            raise refused(file, f"{PIPELINE_LOCK} is not the one whose SHA-256 the page tells")
        unchecked.remove(PIPELINE_LOCK)
    made_from = {name: content for name, content in files.items() if name not in (METADATA, SUMS)}
    if files[METADATA] != crate_metadata(made_from, summary):
        # Its names, sizes and references hold; another version of its library may have put them into other words.
        unchecked.add(f"{METADATA} (the words in it)")
    return Imported(target, summary, tuple(sorted(unchecked)))


def refused(file: Path, reason: str) -> ReproError:
    """The error about a bundle that is not taken."""
    return ReproError(
        f"{file} is refused: {reason}.",
        "It was changed after it was made, or is no bundle of this package. Nothing of it is kept.",
        "Fetch bundle.zip again from where the report was published.",
        Exit.VERIFICATION,
    )
