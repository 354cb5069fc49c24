"""Which version of this package made a page: its number, and a hash of the code between the records and the page."""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from specprefill_repro import __version__
from specprefill_repro.files import sha256_file

PACKAGE, CODE = "package", "report code (SHA-256)"
"""Names of the two facts on a page."""
STAGES = ("estimates", "verdicts", "report")
"""Their code and templates decide what a page says of its records."""


def version_facts() -> dict[str, str]:
    """The facts about this version."""
    return {PACKAGE: __version__, CODE: report_code()}


@cache
def report_code() -> str:
    """SHA-256 over all source files and templates of the stages between the records and the page."""
    package, digest = Path(__file__).parent.parent, hashlib.sha256()
    files = [
        path for stage in STAGES for path in (package / stage).rglob("*") if path.suffix in (".py", ".html", ".css")
    ]
    for path in sorted(files):
        digest.update(f"{path.relative_to(package).as_posix()}={sha256_file(path)}\n".encode())
    return digest.hexdigest()


def other_version(facts: Mapping[str, str]) -> str | None:
    """Says that a page with these facts was made by another version than this one; None when it was not."""
    if all(facts.get(name) == value for name, value in version_facts().items()):
        return None
    return f"The page was made by another version of this package, {_named(facts)}; this is {_named(version_facts())}."


def _named(facts: Mapping[str, str]) -> str:
    number, code = (str(facts.get(name, "not named"))[:40] for name in (PACKAGE, CODE))
    return f"{number} (report code {code[:12]})"
