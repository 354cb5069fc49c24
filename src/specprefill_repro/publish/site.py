"""The site: an index of reports, and a folder for each that never changes once it is there.

    index.html                    the list of reports; it carries the list, so that this one file is the site's state
    reports/HASH/index.html       a report, with its tables beside it (trials.parquet, estimates.json, ...)
    reports/HASH/bundle.zip       the same and all that it was made with

HASH stands for every byte of the bundle: a report that changes gets another folder, and the old one stays. Whoever
writes a site adds the folders first and replaces index.html last, so a reader never sees half of it.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup
from pydantic import Field, ValidationError

from specprefill_repro.bundles.archive import unpack, write_archive
from specprefill_repro.bundles.contents import (
    BESIDE_THE_PAGE,
    PAGE,
    SUMS,
    Files,
    checksums,
    identity_of,
    read_summary,
)
from specprefill_repro.bundles.schema import Summary
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import canonical_json
from specprefill_repro.report.build import template_environment
from specprefill_repro.report.rows import SYMBOLS
from specprefill_repro.schema import Frozen
from specprefill_repro.verdicts.schema import Word

INDEX, REPORTS, BUNDLE = "index.html", "reports", "bundle.zip"
MAX_INDEX_BYTES = 5_000_000
BLOCK = re.compile(r'<script type="application/json" id="reports">(.*?)</script>', re.DOTALL)


class Entry(Frozen):
    """One report of a site."""

    identity: str = Field(pattern=r"^[0-9a-f]{16}$")
    summary: Summary
    page_bytes: int
    bundle_bytes: int

    @property
    def folder(self) -> str:
        return f"{REPORTS}/{self.identity}"


class Listing(Frozen):
    reports: tuple[Entry, ...] = ()
    """The newest measurement first."""


@dataclass(frozen=True)
class Site:
    """A site as it is: its list, and every path in it."""

    listing: Listing
    paths: frozenset[str]


def read_site(index: bytes | None, paths: frozenset[str], place: str, fetch: Callable[[str], bytes]) -> Site:
    """The site whose index.html is `index` (None: there is none yet), each line of it held against its bundle.

    Args:
        fetch: gives the content of the file of the site at one of `paths`.

    Raises:
        ReproError: there is an index.html that this package did not make, or one that was edited; or a report of it is
            not there.
    """
    if index is None:
        return Site(Listing(), paths)
    try:
        (block,) = BLOCK.findall(index[:MAX_INDEX_BYTES].decode())
        listing = Listing.model_validate_json(block)
    except ValueError as error:
        raise ReproError(
            f"{place} holds an index.html that this package did not make.",
            "Something else is published there, and it would be overwritten.",
            "Choose another place, or move that file away first.",
        ) from error
    for entry in listing.reports:
        _check_entry(entry, paths, place, fetch)
    return Site(listing, paths)


def _check_entry(entry: Entry, paths: frozenset[str], place: str, fetch: Callable[[str], bytes]) -> None:
    page, archive = f"{entry.folder}/{PAGE}", f"{entry.folder}/{BUNDLE}"
    if not {page, archive} <= paths:
        raise ReproError(
            f"{place} lists the report {entry.identity} and does not hold it.",
            "The folder was deleted by hand.",
            f"Put {entry.folder} back, or delete {INDEX} there to begin a new list.",
            Exit.VERIFICATION,
        )
    content = fetch(archive)
    files = unpack(content, f"{archive} of {place}")
    try:
        own = identity_of(files) == entry.identity and checksums(files) == files[SUMS]
        right = own and entry_of(files, len(content)) == entry
    except (KeyError, ValidationError):
        right = False
    if not right:
        raise ReproError(
            f"{place} says something else about the report {entry.identity} than its bundle.",
            f"{INDEX} there, or {archive}, was edited after it was made; a new list would repeat it.",
            f"Put both back as they were, or delete {INDEX} there to begin a new list.",
            Exit.VERIFICATION,
        )


def entry_of(bundle: Files, archive_bytes: int) -> Entry:
    """The entry of a bundle that takes so many bytes as a zip file."""
    return Entry(
        identity=identity_of(bundle),
        summary=read_summary(bundle),
        page_bytes=len(bundle[PAGE]),
        bundle_bytes=archive_bytes,
    )


def new_files(bundle: Files, site: Site) -> tuple[Entry, Files]:
    """The entry of a bundle, and the files that a site needs for it: those of its own folder, and the new index."""
    archive = write_archive(bundle)
    entry = entry_of(bundle, len(archive))
    reports = {report.identity: report for report in site.listing.reports} | {entry.identity: entry}
    listing = Listing(reports=tuple(sorted(reports.values(), key=lambda e: (e.summary.date, e.identity), reverse=True)))
    files = {f"{entry.folder}/{name}": bundle[name] for name in (PAGE, *BESIDE_THE_PAGE) if name in bundle}
    return entry, {**files, f"{entry.folder}/{BUNDLE}": archive, INDEX: render_index(listing)}


def render_index(listing: Listing) -> bytes:
    """The page that lists the reports; the same bytes for the same list."""
    symbols = {word.value: (word.value, *SYMBOLS[word]) for word in Word}
    # Any "<" of the list would otherwise be able to end the script block.
    block = canonical_json(json.loads(listing.model_dump_json())).decode().replace("<", "\\u003c")
    page = (
        template_environment("specprefill_repro.publish")
        .get_template("index.html")
        .render(reports=listing.reports, symbols=symbols, block=Markup(block), kilobytes=_kilobytes)
    )
    return page.encode()


def _kilobytes(size: int) -> str:
    return f"{max(1, round(size / 1000)):,} kB"
