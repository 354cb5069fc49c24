"""Find a study by name and read it, as it runs on this machine."""

from specprefill_repro.errors import ReproError
from specprefill_repro.files import read_yaml_model
from specprefill_repro.project import MERGED, Project
from specprefill_repro.study.given import given_engines, with_given, without_engines
from specprefill_repro.study.scale import SUFFIX, at_tiny_scale
from specprefill_repro.study.schema import Study

README = "README.md"


def study_names(project: Project) -> list[str]:
    """Names of the studies in config/studies, sorted."""
    return sorted(path.stem for path in (project.config / "studies").glob("*.yaml"))


def load_study(project: Project, name: str) -> Study:
    """Read config/studies/NAME.yaml; NAME.tiny is the same study at tiny scale.

    Engines that only a user can bring are filled in from config/engines.yaml, or left out with what runs on them.

    Raises:
        ReproError: there is no such study, or its file is not valid.
    """
    known = study_names(project)
    tiny = name.endswith(SUFFIX) and name not in known
    study = with_given(_read(project, name.removesuffix(SUFFIX) if tiny else name, known), given_engines(project))
    if not tiny:
        return study
    from specprefill_repro.models.load import stand_in

    servers = [engine for engine, settings in study.engines.items() if settings.environment is not None]
    if servers:
        study = without_engines(study, servers, "not run at tiny scale, where no server is installed")
    return at_tiny_scale(study, lambda model: stand_in(project, model))


def _read(project: Project, name: str, known: list[str]) -> Study:
    if name not in known:
        raise ReproError(
            f"There is no study {name!r}; there are: {', '.join(known) or 'none'}.",
            "A study is a file config/studies/NAME.yaml, and its name is given without the ending.",
            f"./reproduce {known[0]}" if known else "Look into the folder config/studies.",
        )
    taken = _taken(name, known)
    if taken is not None:
        raise ReproError(
            f"A study can't be called {name!r}.",
            f"Its report would lie where {taken}.",
            f"Give the study another name: rename config/studies/{name}.yaml and set its key `name`.",
        )
    study = read_yaml_model(project.study_file(name), Study)
    if study.name != name:
        raise ReproError(
            f"config/studies/{name}.yaml calls itself {study.name!r}.",
            "The file was copied or renamed, and its key `name` was not changed with it.",
            f"Set `name: {name}` in the file.",
        )
    if study.shrunk is not None or study.left_out:
        raise ReproError(
            f"config/studies/{name}.yaml sets `shrunk` or `left_out`.",
            "These say how a study was changed to run here; they are no part of it.",
            "Take them out; a study is made small with: --scale tiny",
        )
    return study


def _taken(name: str, known: list[str]) -> str | None:
    """What has the place in reports/ that a study of that name would get; None when it is free."""
    if name == MERGED:
        return "`specprefill-repro merge` writes its page"
    if name == README.lower():
        return f"reports/{README} lies, on a disk that takes small and capital letters for the same"
    if name.endswith(SUFFIX) and name.removesuffix(SUFFIX) in known:
        return f"that of {name.removesuffix(SUFFIX)} at tiny scale lies"
    return None
