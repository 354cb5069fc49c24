"""Find a study by name and read it."""

from specprefill_repro.errors import ReproError
from specprefill_repro.files import read_yaml_model
from specprefill_repro.project import Project
from specprefill_repro.study.schema import Study


def study_names(project: Project) -> list[str]:
    """Names of the studies in config/studies, sorted."""
    return sorted(path.stem for path in (project.config / "studies").glob("*.yaml"))


def load_study(project: Project, name: str) -> Study:
    """Read config/studies/NAME.yaml.

    Raises:
        ReproError: there is no such study, or its file is not valid.
    """
    known = study_names(project)
    if name not in known:
        raise ReproError(
            f"There is no study {name!r}; there are: {', '.join(known) or 'none'}.",
            "A study is a file config/studies/NAME.yaml, and its name is given without the ending.",
            f"./reproduce {known[0]}" if known else "Look into the folder config/studies.",
        )
    study = read_yaml_model(project.study_file(name), Study)
    if study.name != name:
        raise ReproError(
            f"config/studies/{name}.yaml calls itself {study.name!r}.",
            "The file was copied or renamed, and its key `name` was not changed with it.",
            f"Set `name: {name}` in the file.",
        )
    return study
