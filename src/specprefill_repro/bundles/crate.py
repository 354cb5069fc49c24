"""RO-Crate: the description of a bundle that other programs read (https://w3id.org/ro/crate/1.1)."""

import io
import json
import mimetypes
from typing import Any

from specprefill_repro.bundles.schema import Summary
from specprefill_repro.errors import Exit, ReproError

METADATA = "ro-crate-metadata.json"
SUMS = "SHA256SUMS"
VERSION = "1.1"
LICENCE = "https://www.apache.org/licenses/LICENSE-2.0"
DESCRIPTIONS = {
    "index.html": "The report, with its records inside",
    "bundle.json": "One line about the report",
    "trials.parquet": "All records of trials, one a row",
    "trials.csv": "The same for a spreadsheet",
    "blocks.parquet": "The receipts of the blocks: which records belong together, and what could have changed them",
    "estimates.json": "What the records say, cell by cell",
    "verdicts.json": "What the estimates say about each claim",
    "claims.json": "The claim cards that were judged",
    "gates.json": "The checks that each pair of models passed or failed",
    "models.json": "The models: source, revision, files, sizes and SHA-256",
    "study.yaml": "The study's configuration",
    SUMS: "SHA-256 of every other file",
}


def crate_metadata(files: dict[str, bytes], summary: Summary) -> bytes:
    """The metadata file of a bundle that holds `files`; the same bytes for the same bundle.

    Raises:
        ReproError: it is not a valid crate.
    """
    from rocrate.rocrate import ROCrate

    crate = ROCrate(version=VERSION)
    crate.name = f"{summary.title}: a report of specprefill-repro"
    crate.description = (
        f"Study {summary.study} on {summary.machine}: {summary.records} trials. {summary.answer}. "
        "Every number of the report can be recomputed from the records: specprefill-repro verify index.html"
    )
    crate.root_dataset["datePublished"] = summary.date
    crate.root_dataset["license"] = {"@id": LICENCE}
    for path in sorted([*files, SUMS]):
        kind = "application/yaml" if path.endswith(".yaml") else mimetypes.guess_type(path)[0] or "text/plain"
        properties = {"name": DESCRIPTIONS.get(path, f"Lock file {path}"), "encodingFormat": kind}
        if path in files:
            properties["contentSize"] = str(len(files[path]))
        crate.add_file(io.BytesIO(b""), path, properties=properties)
    metadata = crate.metadata.generate()
    metadata["@graph"].append(
        {"@id": LICENCE, "@type": "CreativeWork", "name": "Apache License 2.0", "identifier": "Apache-2.0"}
    )
    content = (json.dumps(metadata, indent=1, sort_keys=True) + "\n").encode()
    check_crate(content, files)
    return content


def check_crate(content: bytes, files: dict[str, bytes]) -> None:
    """Hold a metadata file against the rules of RO-Crate 1.1 for one that travels with its files, and against them.

    Raises:
        ReproError: a rule that it breaks (exit code VERIFICATION).
    """
    try:
        document = json.loads(content)
        entities = {entity["@id"]: entity for entity in document["@graph"]}
        if len(entities) != len(document["@graph"]):
            raise ValueError("an @id stands twice")
        if f"ro/crate/{VERSION}" not in str(document["@context"]):
            raise ValueError(f"the context is not that of RO-Crate {VERSION}")
        descriptor = entities[METADATA]
        if descriptor["about"]["@id"] != "./" or VERSION not in descriptor["conformsTo"]["@id"]:
            raise ValueError("the descriptor is about something else than ./, or conforms to another version")
        root = entities["./"]
        for key in ("name", "description", "datePublished", "license"):
            if not root.get(key):
                raise ValueError(f"the root has no {key}")
        parts = root["hasPart"] if isinstance(root["hasPart"], list) else [root["hasPart"]]
        described = {part["@id"] for part in parts}
        wanted = {*files, SUMS} - {METADATA}
        if described != wanted:
            raise ValueError(f"it describes other files than there are: {', '.join(sorted(described ^ wanted)[:5])}")
        for path in sorted(wanted - {SUMS}):
            if entities[path]["@type"] != "File" or entities[path]["contentSize"] != str(len(files[path])):
                raise ValueError(f"type or size of {path} is another one")
        for entity in entities.values():
            for reference in _references(entity):
                if reference not in entities and not reference.startswith("https://w3id.org/ro/crate/"):
                    raise ValueError(f"{reference} is named and not described")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ReproError(
            f"{METADATA} is not a valid RO-Crate: {error}.",
            "The file was edited or damaged, or another program made it.",
            "Fetch the bundle again from where it was published.",
            Exit.VERIFICATION,
        ) from error


def _references(entity: dict[str, Any]) -> list[str]:
    values = [item for value in entity.values() for item in (value if isinstance(value, list) else [value])]
    return [value["@id"] for value in values if isinstance(value, dict) and set(value) == {"@id"}]
