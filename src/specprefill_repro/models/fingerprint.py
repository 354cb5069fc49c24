"""What a model depends on, as one hash that is cheap enough for every start of the workflow."""

from collections.abc import Callable
from typing import Any

from specprefill_repro.files import content_id
from specprefill_repro.fingerprint import code_fingerprint, definitions
from specprefill_repro.models.load import base_of, load_definition, locked_model
from specprefill_repro.models.local import local_files
from specprefill_repro.models.schema import LocalSource
from specprefill_repro.project import Project

CONVERTERS = {
    "pypi": "specprefill_repro.models.gguf",
    "first-layers": "specprefill_repro.models.derived",
    "padded": "specprefill_repro.models.derived",
    "synthetic": "specprefill_repro.models.synthetic",
}
"""Modules that decide what is in a model's files; the others only copy."""


def model_fingerprint(project: Project, name: str) -> str:
    """SHA-256 over definition, lock entry, converting code, and the same of the model that it is made from.

    Reads configuration only; of a `local` model also the source folder, hashed once and then by its time stamps.

    Raises:
        ReproError: the model is unknown, its lock is for another source, or its local folder cannot be used.
    """
    return content_id(_parts(project, name, lambda converter: code_fingerprint([converter]), model_fingerprint))


def describe_model(project: Project, name: str) -> dict[str, Any]:
    """What the fingerprint covers, as plain values; of code, the functions and classes.

    Raises:
        ReproError: as `model_fingerprint`.
    """
    return _parts(project, name, lambda converter: definitions([converter]), describe_model)


def _parts(
    project: Project, name: str, of_code: Callable[[str], Any], of_base: Callable[[Project, str], Any]
) -> dict[str, Any]:
    source = load_definition(project, name).source
    lock = locked_model(project, name)
    base = base_of(source)
    converter = CONVERTERS.get(source.kind)
    files = local_files(project, name, source) if isinstance(source, LocalSource) else ()
    return {
        # The locked source: a revision that the definition leaves out and one that it names are the same.
        "source": (lock.source if lock else source).model_dump(mode="json"),
        # Not who wrote the entry: to confirm one makes no result stale.
        "lock": lock.model_dump(mode="json", exclude={"first_use"}) if lock else None,
        "code": of_code(converter) if converter else None,
        "base": of_base(project, base) if base else None,
        "files": [file.model_dump(mode="json") for file in files],
    }
