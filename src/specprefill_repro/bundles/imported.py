"""Bundles of others: checked as if an enemy had made them, then kept under results/imported/HASH."""

import shutil
import tempfile
from pathlib import Path

from pydantic import BaseModel

from specprefill_repro.bundles.archive import read_archive, write_archive
from specprefill_repro.bundles.contents import (
    BESIDE_THE_PAGE,
    PAGE,
    SUMMARY,
    SUMS,
    Files,
    checksums,
    identity_of,
    read_report,
    read_summary,
    settings_files,
    tables,
)
from specprefill_repro.bundles.crate import METADATA, check_crate
from specprefill_repro.bundles.schema import Summary, summary_of
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import explain_write_error, write_bytes
from specprefill_repro.project import Project
from specprefill_repro.trials.schema import BlockReceipt, TrialRecord
from specprefill_repro.trials.table import parse_table

NEEDED = (PAGE, SUMMARY, SUMS, METADATA, "trials.parquet", "blocks.parquet", "estimates.json", "verdicts.json")
MAY_BE = frozenset({*NEEDED, *BESIDE_THE_PAGE, "claims.json", "models.json", "gates.json", "study.yaml"})
ROWS: dict[str, type[BaseModel]] = {"trials.parquet": TrialRecord, "blocks.parquet": BlockReceipt}
LOCKS = ("envs/", ".lock")
ARCHIVE = "bundle.zip"


def import_bundle(project: Project, file: Path) -> tuple[Path, Summary]:
    """Check a bundle and keep it; returns its folder and its line.

    Every size, name and hash is checked, every estimate and verdict recomputed from the records, and the page drawn
    anew and compared, before anything lies under the name that others read.

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
        summary = _recompute(file, draft / PAGE, files)
        # Written anew from what was checked: what else the file may have held between its entries is not kept.
        write_bytes(draft / ARCHIVE, write_archive(files))
        draft.chmod(0o755)
        if target.exists():
            return target, summary
        draft.replace(target)
    except OSError as error:
        explain_write_error(error, target)
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
    return target, summary


def _check_files(file: Path, files: Files) -> None:
    """The files are those of a bundle, and each is the one that SHA256SUMS names."""
    missing = [name for name in NEEDED if name not in files]
    if missing:
        raise refused(file, f"{missing[0]} is missing")
    begin, end = LOCKS
    other = [name for name in files if name not in MAY_BE and not (name.startswith(begin) and name.endswith(end))]
    if other:
        raise refused(file, f"it holds {other[0][:100]!r}, which no bundle has")
    told, found = (set(text.decode(errors="replace").splitlines()) for text in (files[SUMS], checksums(files)))
    if checksums(files) != files[SUMS]:
        wrong = sorted(line.partition("  ")[2] for line in told ^ found)
        raise refused(file, f"SHA256SUMS and the files differ: {', '.join(dict.fromkeys(wrong))[:300] or 'its form'}")
    check_crate(files[METADATA], {name: content for name, content in files.items() if name != SUMS})


def _recompute(file: Path, page: Path, files: Files) -> Summary:
    try:
        report = read_report(page)
        summary = read_summary(files)
        told = summary_of(report.data, report.trials).model_copy(update={"package": summary.package})
    except ReproError:
        raise
    except Exception as error:
        # Whatever a made-up page makes the analysis stumble over, it is no report of this package.
        raise refused(file, f"its records can't be analysed ({type(error).__name__})") from error
    if summary != told:
        raise refused(file, f"{SUMMARY} says something else than the records")
    expected = {**dict.fromkeys(BESIDE_THE_PAGE), **tables(report), **settings_files(report.data)}
    for name, content in expected.items():
        if not _same(name, files.get(name), content):
            raise refused(file, f"{name} says something else than the page")
    return summary


def _same(name: str, found: bytes | None, expected: bytes | None) -> bool:
    """Byte for byte; of Parquet, which may be packed in many ways, row by row."""
    if name not in ROWS or found is None or expected is None:
        return found == expected
    try:
        one, other = (parse_table(Path(name), content, ROWS[name]) for content in (found, expected))
    except ReproError:
        return False
    return bool(one.equals(other))


def refused(file: Path, reason: str) -> ReproError:
    """The error about a bundle that is not taken."""
    return ReproError(
        f"{file} is refused: {reason}.",
        "It was changed after it was made, or is no bundle of this package. Nothing of it is kept.",
        "Fetch bundle.zip again from where the report was published.",
        Exit.VERIFICATION,
    )
