"""Server engines that the user of this machine has named: config/engines.yaml, written by `--engine KIND=PATH`."""

import shlex
from collections.abc import Iterable
from pathlib import Path

import yaml
from pydantic import Field

from specprefill_repro.errors import ReproError
from specprefill_repro.files import read_yaml_model, users_path, write_text
from specprefill_repro.project import Project
from specprefill_repro.schema import Frozen
from specprefill_repro.study.engines import OmlxEngine
from specprefill_repro.study.schema import Study


class GivenOmlx(Frozen):
    """Where oMLX is here; the same keys as in a study's `engines`."""

    command: str | None = None
    checkout: str | None = None
    python: str | None = None


class GivenEngines(Frozen):
    omlx: GivenOmlx | None = Field(default=None)


def given_file(project: Project) -> Path:
    return project.config / "engines.yaml"


def given_engines(project: Project) -> GivenEngines:
    """What config/engines.yaml says; nothing where there is none.

    Raises:
        ReproError: it is not valid.
    """
    path = given_file(project)
    return read_yaml_model(path, GivenEngines) if path.exists() else GivenEngines()


def give_engine(project: Project, text: str) -> None:
    """Keep `KIND=PATH` of `--engine` for this and all later runs of this checkout.

    The path is a checkout of oMLX's source (run by the Python of its .venv, where it has one) or its command.

    Raises:
        ReproError: it is not of that form, or nothing is there.
    """
    kind, _, place = text.partition("=")
    if kind != "omlx" or not place:
        raise ReproError(
            f"--engine {text!r} was not understood.",
            "The only engine that a user brings is oMLX; the others are installed from this project's locks.",
            "Give --engine omlx=PATH, with the folder of its source or its command.",
        )
    path = users_path(place)
    if path.is_dir():
        folder = path.resolve()
        python = folder / ".venv" / "bin" / "python"
        given = GivenOmlx(checkout=str(folder), python=str(python) if python.exists() else None)
    elif path.is_file():
        given = GivenOmlx(command=shlex.quote(str(path.resolve())))
    else:
        raise ReproError(
            f"There is no oMLX at {place}.",
            "The path names neither the folder of its source nor its command.",
            "Give --engine omlx=PATH with one of these.",
        )
    content = GivenEngines(omlx=given).model_dump(exclude_none=True)
    header = "# Server engines of this machine; written by --engine, and not part of the project.\n"
    write_text(given_file(project), header + yaml.safe_dump(content, sort_keys=False))


def with_given(study: Study, given: GivenEngines) -> Study:
    """The study with its `when_given` engines as they are here, or without what runs on them where there are none."""
    optional = {name for name, e in study.engines.items() if isinstance(e, OmlxEngine) and e.when_given}
    if not optional:
        return study
    if given.omlx is not None:
        found = {k: v.model_copy(update=given.omlx.model_dump()) for k, v in study.engines.items() if k in optional}
        return study.model_copy(update={"engines": {**study.engines, **found}})
    return without_engines(study, optional, "not given (--engine omlx=PATH)")


def without_engines(study: Study, names: Iterable[str], reason: str) -> Study:
    """The study without the comparisons on these engines; what was left out, and why, stays in it."""
    gone = set(names)
    kept = tuple(each for each in study.comparisons if (each.engine or study.engine) not in gone)
    if not kept:
        raise ReproError(
            f"Nothing is left of the study {study.name!r} without {', '.join(sorted(gone))}.",
            f"Its engines: {reason}.",
            "Name an engine that is here.",
        )
    left_out = (*study.left_out, *(f"{name}: {reason}" for name in study.engines if name in gone))
    content = study.model_dump() | {
        "engines": {name: engine for name, engine in study.engines.items() if name not in gone},
        "comparisons": kept,
        "left_out": left_out,
    }
    return Study.model_validate(content)
