"""The command: look at what would be published, show it, and write it only when told to."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from specprefill_repro.bundles.contents import Files, make_bundle
from specprefill_repro.errors import ReproError
from specprefill_repro.files import users_path
from specprefill_repro.project import Project
from specprefill_repro.publish.folder import Folder
from specprefill_repro.publish.github_pages import GitBranch, remote_of
from specprefill_repro.publish.hf_space import Space
from specprefill_repro.publish.scan import Finding, own_values, scan, searchable
from specprefill_repro.publish.site import INDEX, Entry, Site, new_files


class Destination(Protocol):
    """A place where a site is, or will be."""

    @property
    def place(self) -> str:
        """In words, as it may be shown."""

    def read(self) -> Site:
        """The site that is there."""

    def held(self, tell: Callable[[str], None]) -> AbstractContextManager[None]:
        """While it lasts, no other publication from this machine changes the site; waits for one, and says so."""

    def write(self, files: Files, message: str) -> str:
        """Add files, all or none; returns the address of the site."""


def publish(
    project: Project,
    study: str,
    destination: Destination,
    go: bool,
    acknowledged: Sequence[str],
    say: Callable[[str], None],
) -> None:
    """Publish the report of a study.

    Args:
        go: write; otherwise only say what would be written.
        acknowledged: codes of findings that may be published.

    Raises:
        ReproError: no report, one that does not follow from its records, something found that is not acknowledged, or
            a destination that can't be written. The old site is then as it was.
    """
    bundle, remarks = make_bundle(project, study)
    site = destination.read()
    entry, files = new_files(bundle, site)
    if entry in site.listing.reports:
        say(_already(destination, entry))
        return
    own = own_values(dict(os.environ))
    # All that is published is in the bundle, which is searched unpacked, and in the index.
    findings = scan({**searchable(bundle), f"site/{INDEX}": files[INDEX]}, own)
    _show(destination, bundle, files, remarks, site, findings, acknowledged, len(own), say)
    open_findings = [finding for finding in findings if finding.code not in acknowledged]
    if not go:
        say("Dry run: nothing was written. The same command with --yes writes it.")
        return
    if open_findings:
        raise ReproError(
            f"Nothing was published: {len(open_findings)} findings (listed above) are not acknowledged.",
            "What is published can't be taken back, and these look like names, paths or secrets.",
            "Remove them and run the study's report again, or acknowledge each: "
            + " ".join(f"--acknowledge {finding.code}" for finding in open_findings[:20]),
        )
    with destination.held(say):
        # Others may have published since it was looked at.
        site = destination.read()
        if entry in site.listing.reports:
            say(_already(destination, entry))
            return
        entry, files = new_files(bundle, site)
        address = destination.write(files, f"Add report {entry.identity}: {study}, {entry.summary.date[:10]}")
    say(f"Published: {address}\nPermanent link of this report: {entry.folder}/")


def _already(destination: Destination, entry: Entry) -> str:
    return f"{destination.place} already holds this report, as {entry.folder}/; nothing to do."


def destination_of(project: Project, text: str, remote: str | None) -> Destination:
    """The destination that `--to` names: a folder, `github-pages`, or `hf-space:USER/NAME`.

    Args:
        remote: address of a git remote, for `github-pages` alone.
    """
    if remote is not None and text != "github-pages":
        raise ReproError("--remote is for --to github-pages.", f"Here --to is {text}.", "Leave --remote out.")
    if text == "github-pages":
        return GitBranch(remote_of(project.root, remote))
    if text.startswith("hf-space:"):
        return Space(text.removeprefix("hf-space:"))
    try:
        return Folder(users_path(text))
    except (RuntimeError, ValueError) as error:
        raise ReproError(
            f"{text[:200]!r} is not the path of a folder: {error}",
            "It begins with ~ and the name of nobody here.",
            "Give the path of a folder, github-pages, or hf-space:USER/NAME.",
        ) from error


def _show(
    destination: Destination,
    bundle: Files,
    files: Files,
    remarks: list[str],
    site: Site,
    findings: list[Finding],
    acknowledged: Sequence[str],
    own: int,
    say: Callable[[str], None],
) -> None:
    say(f"To {destination.place}, which holds {len(site.listing.reports)} reports; all of them stay:")
    for name, content in files.items():
        what = "replaced" if name == INDEX and name in site.paths else "new"
        say(f"  {len(content):>12,} bytes  {what:<8}  {name}")
        if name.endswith("bundle.zip"):
            for inner, unpacked in bundle.items():
                say(f"  {len(unpacked):>12,} bytes            | {inner}")
    say(f"  {sum(map(len, files.values())):>12,} bytes in {len(files)} files")
    for remark in remarks:
        say(f"Remark: {remark}.")
    say(
        f"Searched for home paths, user and host names, tokens, serial numbers, network and mail addresses, by pattern "
        f"and by {own} values of this machine: {len(findings) or 'no'} findings."
    )
    for finding in findings:
        say(f"  {finding}{' (acknowledged)' if finding.code in acknowledged else ''}")
