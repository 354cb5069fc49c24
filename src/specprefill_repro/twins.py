"""The same step in another study of this checkout: what a copy of a study under another name will find again."""

from dataclasses import dataclass

from specprefill_repro.files import read_model, sha256_file
from specprefill_repro.made_from import MadeFrom
from specprefill_repro.project import Project
from specprefill_repro.steps import Step


@dataclass(frozen=True)
class Twin:
    """A step of another study with the same parts, whose files are still what they were."""

    study: str
    record: MadeFrom


def twins_of(project: Project, study: str, step: Step) -> list[Twin]:
    """The twins of a step, by the names of their studies.

    Raises:
        ReproError: a record of another study can't be read.
    """
    folder = project.results / "studies"
    others = sorted(path.name for path in folder.iterdir() if path.name != study) if folder.is_dir() else []
    records = {other: project.made_from(other, step.id) for other in others}
    found = [Twin(other, read_model(file, MadeFrom)) for other, file in records.items() if file.is_file()]
    if not found:
        return []
    parts = {name: each.digest for name, each in step.parts().items()}
    return [twin for twin in found if twin.record.parts == parts and _is_untouched(project, twin.record)]


def _is_untouched(project: Project, record: MadeFrom) -> bool:
    files = {**record.inputs, **record.outputs}
    return all(
        (project.root / name).is_file() and sha256_file(project.root / name) == sha256 for name, sha256 in files.items()
    )
