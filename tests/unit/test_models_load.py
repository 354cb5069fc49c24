"""Model definitions and the lock: what is refused, and what the error says."""

from pathlib import Path

import pytest

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.models.load import load_definition, load_lock, locked_model, model_names
from specprefill_repro.project import Project

HUB = "kind: hf, repository: some/model"
OLD, NEW = "a" * 40, "b" * 40


def project(folder: Path, models: str, lock: str = "") -> Project:
    (folder / "config").mkdir()
    (folder / "config" / "models.yaml").write_text("models:\n" + models)
    if lock:
        (folder / "config" / "models.lock.yaml").write_text("models:\n" + lock)
    return Project(folder)


def model(name: str, source: str) -> str:
    return f"  {name}: {{source: {{{source}}}, license: MIT}}\n"


def lock(name: str, source: str) -> str:
    return f"  {name}: {{source: {{{source}}}, files: []}}\n"


def test_the_models_of_this_project_are_valid_and_locked(real_project: Project) -> None:
    names = model_names(real_project)
    assert {"smollm2-135m", "smollm2-135m-x3", "smollm2-135m-x4"} <= set(names)
    for name in names:
        load_definition(real_project, name)
    entry = locked_model(real_project, "smollm2-135m")
    assert entry is not None
    assert len(entry.files) == 2


def test_misspelt_model_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match=r"no model 'smolm2'.*Did you mean 'smollm2'\?"):
        load_definition(project(tmp_path, model("smollm2", HUB)), "smolm2")


def test_unknown_base_names_the_model_that_wants_it(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match="no model 'gone', which 'big' is made from"):
        load_definition(project(tmp_path, model("big", "kind: padded, base: gone, layers: 4")), "big")


def test_models_made_of_each_other_are_refused(tmp_path: Path) -> None:
    circle = model("a", "kind: padded, base: b, layers: 4") + model("b", "kind: first-layers, base: a, layers: 2")
    with pytest.raises(ReproError, match="a -> b -> a"):
        load_definition(project(tmp_path, circle), "a")


def test_name_that_collides_with_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match=r"ends in \.json"):
        load_definition(project(tmp_path, model("a.json", HUB)), "a.json")


@pytest.mark.parametrize(
    "source",
    [
        "kind: torrent, repository: some/model",
        "kind: hf, repository: some/model, branch: main",
        "kind: hf, repository: some/model, revision: main",
        "kind: hf, repository: ../../etc",
        "kind: pypi, distribution: x, version: '1', member: ../../etc/passwd",
        "kind: pypi, distribution: x, version: '1', member: /etc/passwd",
        "kind: pypi, distribution: '--index-url=x', version: '1', member: a",
        "kind: padded, base: a, layers: '4'",
        "kind: padded, base: a, layers: 0",
    ],
)
def test_bad_source_is_refused_with_its_key(tmp_path: Path, source: str) -> None:
    with pytest.raises(ReproError, match=r"models\.a\.source") as caught:
        load_definition(project(tmp_path, model("a", source)), "a")
    assert caught.value.exit_code == Exit.BAD_INPUT


def test_missing_lock_is_an_empty_one(tmp_path: Path) -> None:
    here = project(tmp_path, model("a", HUB))
    assert load_lock(here).models == {}
    assert locked_model(here, "a") is None


def test_lock_gives_the_revision_that_the_definition_leaves_out(tmp_path: Path) -> None:
    here = project(tmp_path, model("a", HUB), lock("a", f"{HUB}, revision: {OLD}"))
    entry = locked_model(here, "a")
    assert entry is not None
    assert entry.source.revision == OLD  # type: ignore[union-attr]


def test_wrong_revision_stops_with_both(tmp_path: Path) -> None:
    here = project(tmp_path, model("a", f"{HUB}, revision: {NEW}"), lock("a", f"{HUB}, revision: {OLD}"))
    with pytest.raises(ReproError, match=f"{NEW}.*{OLD}") as caught:
        locked_model(here, "a")
    assert caught.value.exit_code == Exit.VERIFICATION


def test_lock_of_another_source_stops(tmp_path: Path) -> None:
    here = project(tmp_path, model("a", "kind: hf, repository: other/model"), lock("a", f"{HUB}, revision: {OLD}"))
    with pytest.raises(ReproError, match="another source"):
        locked_model(here, "a")
