"""Which models a person means who names studies or models on the command line."""

from specprefill_repro.errors import ReproError
from specprefill_repro.models.load import base_of, load_definition, model_names
from specprefill_repro.project import Project
from specprefill_repro.staleness import models_of
from specprefill_repro.study.load import load_study


def models_named(project: Project, names: list[str]) -> list[str]:
    """The models of studies, those included that others are made from, and models named themselves; each once.

    Raises:
        ReproError: neither a study nor a model, or a study that is not valid.
    """
    known = model_names(project)
    found: list[str] = []
    for name in names:
        if project.study_file(name).exists():
            found.extend(models_of(project, load_study(project, name)))
        elif name in known:
            found.append(name)
        else:
            studies = sorted(path.stem for path in (project.config / "studies").glob("*.yaml"))
            raise ReproError(
                f"There is no study and no model {name!r}.",
                f"Studies: {', '.join(studies) or 'none'}. Models: {', '.join(known) or 'none'}.",
                "Give one of these.",
            )
    return list(dict.fromkeys(found))


def sources_named(project: Project, names: list[str]) -> list[str]:
    """As `models_named`, only those that come from outside; a derived model itself is left in for its own error."""
    return [
        model
        for model in models_named(project, names)
        if model in names or base_of(load_definition(project, model).source) is None
    ]
