"""Read claim cards: config/claims/*.yaml, one file a source; contradictions between them in contradictions.yaml.

`python -m specprefill_repro.verdicts.claims --write-schema` rewrites config/claims/claim.schema.json, which editors
use to check and complete a card.
"""

import argparse
import json
from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import Field

from specprefill_repro.errors import ReproError
from specprefill_repro.files import read_yaml_model, write_text
from specprefill_repro.project import Project
from specprefill_repro.schema import Frozen
from specprefill_repro.study.schema import Study
from specprefill_repro.this_command import this_command
from specprefill_repro.verdicts.schema import Claim, ClaimKind, Contradiction

SCHEMA_COMMAND = "python -m specprefill_repro.verdicts.claims --write-schema"


class ClaimFile(Frozen):
    """The cards of one source."""

    claims: tuple[Claim, ...] = Field(min_length=1)


class ContradictionFile(Frozen):
    """What does not fit together in the published statements."""

    contradictions: tuple[Contradiction, ...]


def contradictions_file(project: Project) -> Path:
    return project.claims / "contradictions.yaml"


def claim_files(project: Project) -> list[Path]:
    """The files that hold cards, sorted."""
    return sorted(path for path in project.claims.glob("*.yaml") if path != contradictions_file(project))


def load_claims(project: Project) -> dict[str, Claim]:
    """All cards by id, in the order of files and cards.

    Raises:
        ReproError: a file is not valid, or two cards have the same id.
    """
    claims: dict[str, Claim] = {}
    places: dict[str, Path] = {}
    for path in claim_files(project):
        for claim in read_yaml_model(path, ClaimFile).claims:
            if claim.id in claims:
                raise ReproError(
                    f"Two claims have the id {claim.id!r}: in {places[claim.id].name} and in {path.name}.",
                    "A card was copied, and its id was not changed with it.",
                    f"Give one of them another id: {path}",
                )
            claims[claim.id], places[claim.id] = claim, path
    return claims


def study_claims(study: Study, claims: Mapping[str, Claim]) -> list[Claim]:
    """The cards that a study names, by id or pattern, each once, in the order of the study's list.

    Raises:
        ReproError: a name or pattern fits no card.
    """
    chosen: dict[str, Claim] = {}
    for pattern in study.claims:
        found = [claim for name, claim in claims.items() if fnmatchcase(name, pattern)]
        if not found:
            near = get_close_matches(pattern, claims, n=3, cutoff=0.5)
            raise ReproError(
                f"The study {study.name!r} names the claim {pattern!r}, and no card fits it.",
                f"It is misspelt; near it: {', '.join(near)}." if near else "It is misspelt, or its card was removed.",
                f"List the cards with: {this_command()} claims list",
            )
        chosen |= {claim.id: claim for claim in found}
    return list(chosen.values())


def choose_claims(claims: Mapping[str, Claim], pattern: str = "*", kind: str | None = None) -> list[Claim]:
    """The cards whose id fits a pattern, of one kind alone where that is named.

    Raises:
        ReproError: there is no such kind.
    """
    if kind is not None and kind.replace("-", "_") not in tuple(ClaimKind):
        raise ReproError(
            f"There is no kind of claim {kind!r}.",
            f"There are: {', '.join(ClaimKind)}.",
            f"List one of them: {this_command()} claims list --kind {ClaimKind.AUTHOR_CLAIM}",
        )
    wanted = tuple(ClaimKind) if kind is None else (kind.replace("-", "_"),)
    return [card for name, card in claims.items() if fnmatchcase(name, pattern) and card.kind in wanted]


def find_claim(name: str, claims: Mapping[str, Claim]) -> Claim:
    """One card by its id.

    Raises:
        ReproError: there is none.
    """
    if name not in claims:
        near = get_close_matches(name, claims, n=3, cutoff=0.4)
        raise ReproError(
            f"There is no claim {name!r}.",
            f"It is misspelt; near it: {', '.join(near)}." if near else "It is misspelt, or its card was removed.",
            f"List the cards with: {this_command()} claims list",
        )
    return claims[name]


def load_contradictions(project: Project, claims: Mapping[str, Claim]) -> list[Contradiction]:
    """All contradictions; none when the file is missing.

    Raises:
        ReproError: the file is not valid, an id stands twice, or a claim it names has no card.
    """
    path = contradictions_file(project)
    if not path.exists():
        return []
    found = read_yaml_model(path, ContradictionFile).contradictions
    ids = [contradiction.id for contradiction in found]
    for contradiction in found:
        unknown = [name for name in contradiction.claims if name not in claims]
        if unknown or ids.count(contradiction.id) > 1:
            raise ReproError(
                f"The contradiction {contradiction.id!r} "
                + (f"names claims without a card: {', '.join(unknown)}." if unknown else "stands twice."),
                "A card was renamed or removed, or the entry was copied.",
                f"Correct the file: {path}",
            )
    return list(found)


def schema_text() -> str:
    """The JSON schema of a claim file, as it lies in config/claims/claim.schema.json."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | ClaimFile.model_json_schema()
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Write the schema file."""
    parser = argparse.ArgumentParser(prog="python -m specprefill_repro.verdicts.claims", description=__doc__)
    parser.add_argument("--write-schema", action="store_true", required=True)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the folder that holds config/")
    folder = Project(parser.parse_args(arguments).root).claims
    write_text(folder / "claim.schema.json", schema_text())


if __name__ == "__main__":
    main()
