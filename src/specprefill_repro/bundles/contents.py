"""What is in a bundle: a report, its data, and what it was made with. Files are a dictionary from path to bytes.

Everything but the lock files follows from the page and the records, so whoever has them can make it again and compare.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from specprefill_repro.bundles.crate import METADATA, crate_metadata
from specprefill_repro.bundles.schema import Summary, summary_of
from specprefill_repro.errors import ReproError
from specprefill_repro.files import json_bytes, read_limited
from specprefill_repro.project import Project
from specprefill_repro.report.data import ReportData, read_embedded
from specprefill_repro.report.tables import read_tables, table_files, tables_of
from specprefill_repro.trials.schema import BlockReceipt
from specprefill_repro.trials.table import Trials
from specprefill_repro.verify import MAX_PAGE_BYTES, verify_page

Files = dict[str, bytes]
PAGE, SUMMARY, SUMS = "index.html", "bundle.json", "SHA256SUMS"
BESIDE_THE_PAGE = ("trials.parquet", "trials.csv", "blocks.parquet", "estimates.json", "verdicts.json")
"""A large study has no trials.csv."""
STUDY = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
LOCK_FACT = "environment lock (SHA-256)"


@dataclass(frozen=True)
class Report:
    """A page that was recomputed, and what it was made from."""

    page: bytes
    data: ReportData
    """The estimates with all their pairs."""
    trials: Trials
    receipts: tuple[BlockReceipt, ...]
    beside: Files
    """The files that the page names by their hashes; none of a page that carries its records."""


def read_report(page: Path) -> Report:
    """Recompute a page, and read it with its records.

    Raises:
        ReproError: as `verify_page`.
    """
    verify_page(page)
    content = read_limited(page, MAX_PAGE_BYTES)
    data = read_embedded(content.decode())
    if not data.beside:
        return Report(content, data, Trials.of_records(data.records), data.receipts, {})
    estimates, trials, receipts = read_tables(page.parent, data)
    beside = {name: (page.parent / name).read_bytes() for name in data.beside}
    return Report(content, data.model_copy(update={"estimates": estimates}), trials, receipts, beside)


def make_bundle(project: Project, study: str) -> tuple[Files, list[str]]:
    """The files of a study's bundle, and remarks on what had to be left out.

    Raises:
        ReproError: there is no report, it has no trials, or it does not follow from its records.
    """
    page = project.report(study)
    # A path is no name: it could lead to any page of the machine.
    if not STUDY.fullmatch(study) or not page.is_file():
        raise ReproError(
            f"There is no report of the study {study[:100]!r} in reports/.",
            "The study has not been run to its end yet, or its name is misspelt.",
            f"Run it: ./reproduce {study[:100]}",
        )
    report = read_report(page)
    if not len(report.trials):
        raise ReproError(
            f"The report of {study!r} has no trials.", "Nothing was measured yet.", f"Run it: ./reproduce {study}"
        )
    locks, remarks = _lock_files(project, report.data)
    return bundle_files(report, locks), remarks


def bundle_files(report: Report, locks: Files) -> Files:
    """All files of the bundle of a report."""
    summary = summary_of(report.data, report.trials)
    files = {PAGE: report.page, **tables(report), **settings_files(report.data), **locks, SUMMARY: json_bytes(summary)}
    files[METADATA] = crate_metadata(files, summary)
    files[SUMS] = checksums(files)
    return dict(sorted(files.items()))


def settings_files(data: ReportData) -> Files:
    """What the page's own data say of claims, models and study, each in a file of its own."""
    return {
        "claims.json": json_bytes([verdict.claim.model_dump(mode="json") for verdict in data.verdicts.verdicts]),
        "models.json": json_bytes({name: model.model_dump(mode="json") for name, model in data.models.items()}),
        "gates.json": json_bytes({pair: gate.model_dump(mode="json") for pair, gate in data.gates.items()}),
        "study.yaml": yaml.safe_dump(data.study.model_dump(mode="json"), sort_keys=True, allow_unicode=True).encode(),
    }


def tables(report: Report) -> Files:
    """What lies beside the page."""
    data = report.data
    recomputable = report.beside or tables_of(report.trials, report.receipts, data.estimates)
    return table_files(recomputable, report.trials if data.lists_trials else None, data.verdicts)


def checksums(files: Files) -> bytes:
    """SHA256SUMS of the files, as `sha256sum -c` reads it."""
    lines = [f"{hashlib.sha256(files[path]).hexdigest()}  {path}\n" for path in sorted(files) if path != SUMS]
    return "".join(lines).encode()


def identity_of(files: Files) -> str:
    """16 hex digits that stand for every byte of a bundle: of the SHA-256 of its SHA256SUMS."""
    return hashlib.sha256(files[SUMS]).hexdigest()[:16]


def read_summary(files: Files) -> Summary:
    """The bundle's own line about itself."""
    return Summary.model_validate_json(files[SUMMARY])


def _lock_files(project: Project, data: ReportData) -> tuple[Files, list[str]]:
    """The lock files that the trials ran with; one that has changed since is not theirs and is left out."""
    paths = [(project.environment_lock, data.facts.get(LOCK_FACT))]
    for settings in data.study.engines.values():
        if settings.environment:
            paths.append((project.engine_lock(settings.environment), None))
    files: Files = {}
    remarks = []
    for path, sha256 in paths:
        name = f"envs/{path.name}"
        if not path.is_file():
            remarks.append(f"{name} is left out: it is not in this checkout")
            continue
        content = path.read_bytes()
        if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
            remarks.append(f"{name} is left out: it has changed since the report was made")
            continue
        files[name] = content
    return files, remarks
