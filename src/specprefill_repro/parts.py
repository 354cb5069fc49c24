"""What a result depends on, part by part: a digest that decides, and a plain value that explains it to a reader."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specprefill_repro.files import content_id, read_yaml, sha256_file
from specprefill_repro.fingerprint import code_fingerprint, definitions

PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)\s*==\s*([^\s;\\]+)", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    digest: str
    """64 hex digits, or a short plain value that stands for itself."""
    describe: Callable[[], Any] | None = None
    """What the digest stands for, as plain values of JSON; asked for only when somebody wants to know."""


Parts = Mapping[str, Part]


def of_code(*modules: str) -> Part:
    """Modules of this package and all that they import."""
    return Part(code_fingerprint(modules), lambda: definitions(modules))


def of_lock(lock: Path) -> Part:
    """A lock file of Python packages, explained by the versions that it pins."""
    return Part(sha256_file(lock), lambda: pinned_versions(lock))


def of_yaml(path: Path) -> Part:
    """A YAML file of ours."""
    return Part(sha256_file(path), lambda: read_yaml(path))


def of_value(value: Any) -> Part:
    """Plain values of JSON."""
    return Part(content_id(value), lambda: value)


def pinned_versions(lock: Path) -> dict[str, str]:
    """Version of each package that a lock file pins, by name."""
    return dict(PINNED.findall(lock.read_text()))
