"""Hub models with the real client against a small server of ours: what is asked, what is taken, and all that fails."""

import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
import yaml
from huggingface_hub import close_session
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from hub_server import COMMIT, LISTING, REPOSITORY, SIGNATURE, Answers, Dies, HubServer, Sends, Stalls
from specprefill_repro.cli import app
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import sha256_file
from specprefill_repro.models.fetch import fetch_model, lock_model
from specprefill_repro.models.fingerprint import model_fingerprint
from specprefill_repro.models.hub import Patience
from specprefill_repro.models.load import load_lock
from specprefill_repro.models.manifest import check_untouched, load_manifest
from specprefill_repro.project import Project
from specprefill_repro.run import lock_unlocked
from specprefill_repro.staleness import model_parts, parameter
from specprefill_repro.study.load import load_study
from specprefill_repro.study.schema import Study
from tiny_model import write_tiny_model

QUICK = Patience(stall=0.4, attempts=3, pause=0.01, longest_pause=2)
TOKEN = "hf_thisIsASecretOfTheUser"
OTHER = "beef" + "0" * 36
WEIGHTS = "model.safetensors"
TAKEN = {"config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS}


@pytest.fixture(autouse=True)
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The Hub's client as on a machine of its own: no login, no cache, no proxy."""
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    close_session()
    yield
    close_session()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    folder = write_tiny_model(tmp_path / "repository")
    (folder / "modeling.py").write_text("raise SystemExit('remote code')")
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    (folder / "README.md").write_text("a model")
    with HubServer(folder) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path / "project")
    (project.config / "studies").mkdir(parents=True)
    (project.root / "Snakefile").touch()
    define(project)
    return project


def define(project: Project, revision: str | None = None, **more: Any) -> None:
    source = {"kind": "hf", "repository": REPOSITORY, "revision": revision}
    definition = {"source": source, "license": "MIT", **more}
    project.models_file.write_text(json.dumps({"models": {"tiny": definition, "twin": definition}}))


def small_study(project: Project) -> Study:
    """The study small, of the model tiny with itself."""
    study = yaml.safe_load((Path(__file__).parents[2] / "config" / "studies" / "demo.yaml").read_text())
    pair = {"target": "tiny", "draft": "tiny"}
    study.update(name="small", pairs=dict.fromkeys(study["pairs"], pair), claims=[])
    project.study_file("small").write_text(json.dumps(study))
    return load_study(project, "small")


def fail(project: Project, name: str = "tiny") -> ReproError:
    """Fetch, which must be refused."""
    with pytest.raises(ReproError) as caught:
        fetch_model(project, name, patience=QUICK)
    return caught.value


def files(project: Project, name: str = "tiny") -> dict[str, str]:
    folder = project.model_folder(name)
    return {path.name: sha256_file(path) for path in folder.glob("[!.]*")}


def part(project: Project) -> Path:
    return project.results / "models" / ".tiny.download" / COMMIT / f"{WEIGHTS}.part"


# What is locked and taken


def test_lock_asks_for_no_weights_and_records_what_they_are(project: Project, hub: HubServer) -> None:
    entry = lock_model(project, "tiny", patience=QUICK)
    assert entry.source.revision == COMMIT  # type: ignore[union-attr]
    assert [file.path for file in entry.files] == sorted(TAKEN)
    for file in entry.files:
        content = (hub.folder / file.path).read_bytes()
        assert (file.size, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert {seen.path for seen in hub.seen} == {LISTING, *TAKEN} - {WEIGHTS}
    assert not project.model_folder("tiny").exists()


def test_lock_that_changes_nothing_writes_nothing_and_other_entries_keep_their_text(
    project: Project, hub: HubServer
) -> None:
    lock_model(project, "twin", patience=QUICK)
    before = project.models_lock.read_text()
    lock_model(project, "tiny", patience=QUICK)
    text = project.models_lock.read_text()
    assert text.endswith(before.partition("models:\n")[2])
    stamp = project.models_lock.stat().st_mtime_ns
    lock_model(project, "tiny", patience=QUICK)
    assert project.models_lock.stat().st_mtime_ns == stamp


def test_two_models_locked_at_once_are_both_in_the_lock(project: Project, hub: HubServer) -> None:
    threads = [
        threading.Thread(target=lock_model, args=(project, name), kwargs={"patience": QUICK})
        for name in ("tiny", "twin")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(load_lock(project).models) == ["tiny", "twin"]


def test_mirror_that_tells_no_hashes_is_locked_by_downloading(project: Project, hub: HubServer) -> None:
    hub.tells_hashes = False
    entry = lock_model(project, "tiny", patience=QUICK)
    assert {file.path: file.sha256 for file in entry.files} == {name: sha256_file(hub.folder / name) for name in TAKEN}
    fetch_model(project, "tiny", patience=QUICK)
    assert len(hub.asked(WEIGHTS)) == 2, "once from the Hub and once from where it leads, not again for the fetch"


def test_first_use_locks_says_so_and_can_be_confirmed(
    project: Project, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = fetch_model(project, "tiny", patience=QUICK)
    assert not manifest.locked
    assert manifest.source.revision == COMMIT  # type: ignore[union-attr]
    assert load_lock(project).models["tiny"].first_use
    assert files(project) == {name: sha256_file(hub.folder / name) for name in TAKEN}
    before = model_fingerprint(project, "tiny")
    small_study(project)
    monkeypatch.chdir(project.root)
    asked = len(hub.seen)
    said = CliRunner().invoke(app, ["lock", "small"])
    assert f"tiny: confirmed as locked on first use at {COMMIT}, 4 files" in said.output
    assert not load_lock(project).models["tiny"].first_use
    assert "first_use" not in project.models_lock.read_text()
    assert model_fingerprint(project, "tiny") == before, "confirming a lock made results stale"
    assert len(hub.seen) == asked
    assert "locked before" in CliRunner().invoke(app, ["lock", "small"]).output
    said = CliRunner().invoke(app, ["models", "verify", "small", "--full"])
    assert said.exit_code == 0
    assert "tiny: 4 files" in said.output


def test_second_fetch_and_offline_fetch_ask_nobody(
    project: Project, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock_model(project, "tiny", patience=QUICK)
    assert fetch_model(project, "tiny", patience=QUICK).locked
    asked = len(hub.seen)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    fetch_model(project, "tiny", patience=QUICK)
    check_untouched(project, "tiny")
    assert len(hub.seen) == asked


def test_offline_without_the_files_is_said_and_nothing_is_asked(
    project: Project, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "network is switched off" in str(fail(project))
    monkeypatch.delenv("HF_HUB_OFFLINE")
    lock_model(project, "tiny", patience=QUICK)
    asked = len(hub.seen)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    error = fail(project)
    assert error.exit_code == Exit.ENVIRONMENT
    assert "offline" in error.why
    assert len(hub.seen) == asked


def test_full_verification_finds_a_change_that_keeps_size_and_time(project: Project, hub: HubServer) -> None:
    fetch_model(project, "tiny", patience=QUICK)
    path = project.model_folder("tiny") / WEIGHTS
    stat = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    check_untouched(project, "tiny")  # by inode, size and time nothing happened
    with pytest.raises(ReproError, match=hashlib.sha256(content).hexdigest()):
        check_untouched(project, "tiny", full=True)


def test_one_set_of_weights_is_taken_where_there_are_several(project: Project, hub: HubServer) -> None:
    tensors = load_file(hub.folder / WEIGHTS)
    (hub.folder / WEIGHTS).rename(hub.folder / "model-fp32.safetensors")
    (hub.folder / "original").mkdir()
    shutil.copy(hub.folder / "model-fp32.safetensors", hub.folder / "original" / WEIGHTS)
    shutil.copy(hub.folder / "model-fp32.safetensors", hub.folder / "consolidated.safetensors")
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[:3], "model-00002-of-00002.safetensors": names[3:]}
    for shard, held in shards.items():
        save_file({name: tensors[name] for name in held}, hub.folder / shard, metadata={"format": "mlx"})
    index = {"metadata": {}, "weight_map": {name: shard for shard, held in shards.items() for name in held}}
    (hub.folder / "model.safetensors.index.json").write_text(json.dumps(index))
    manifest = fetch_model(project, "tiny", patience=QUICK)
    assert [file.path for file in manifest.files if file.path.endswith(".safetensors")] == sorted(shards)
    assert manifest.parameters == sum(np.prod(tensor.shape) for tensor in tensors.values())
    assert not hub.asked("model-fp32.safetensors") + hub.asked("consolidated.safetensors")

    # A folder on this machine is taken in the same way.
    local = {"source": {"kind": "local", "path": str(hub.folder)}, "license": "MIT"}
    (hub.folder / "pytorch_model.bin").unlink()
    project.models_file.write_text(json.dumps({"models": {"here": local}}))
    assert fetch_model(project, "here").weights_sha256 == manifest.weights_sha256
    (hub.folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ReproError, match=r"model-00002-of-00002\.safetensors missing"):
        fetch_model(project, "here")


def test_new_commit_with_the_same_weights_downloads_none(project: Project, hub: HubServer) -> None:
    fetch_model(project, "tiny", patience=QUICK)
    weights = load_manifest(project, "tiny").weights_sha256
    inode = (project.model_folder("tiny") / WEIGHTS).stat().st_ino
    asked = len(hub.asked(WEIGHTS))
    hub.commit = OTHER
    (hub.folder / "tokenizer_config.json").write_text("{}")
    lock_model(project, "tiny", patience=QUICK)
    manifest = fetch_model(project, "tiny", patience=QUICK)
    assert manifest.weights_sha256 == weights
    assert (project.model_folder("tiny") / "tokenizer_config.json").read_text() == "{}"
    assert (project.model_folder("tiny") / WEIGHTS).stat().st_ino == inode
    assert len(hub.asked(WEIGHTS)) == asked
    assert not (project.results / "models" / ".tiny.download").exists()


def test_damaged_file_alone_is_downloaded_anew(project: Project, hub: HubServer) -> None:
    fetch_model(project, "tiny", patience=QUICK)
    good = files(project)
    damaged = project.model_folder("tiny") / "tokenizer.json"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\0")
    error = fail(project)
    assert "tokenizer.json differs" in error.what
    subprocess.run(error.next.partition("   and ")[0], shell=True, check=True)  # as it says
    hub.seen.clear()
    fetch_model(project, "tiny", patience=QUICK)
    assert files(project) == good
    assert {seen.path for seen in hub.seen} == {"tokenizer.json"}


def test_lock_before_a_run_leaves_no_model_stale_after_it(project: Project, hub: HubServer) -> None:
    study = small_study(project)
    lock_unlocked(project, study)
    before = parameter(model_parts(project, study, "tiny"))
    fetch_model(project, "tiny", patience=QUICK)
    assert parameter(model_parts(project, study, "tiny")) == before


def test_offline_option_reaches_all_that_could_ask(
    project: Project, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_study(project)
    monkeypatch.chdir(project.root)
    for name in ("HF_HUB_OFFLINE", "PIP_NO_INDEX"):
        monkeypatch.setenv(name, "")  # so that both are put back
    said = CliRunner().invoke(app, ["run", "small", "--offline"])
    assert isinstance(said.exception, ReproError)
    assert "network is switched off" in said.exception.what
    assert os.environ["HF_HUB_OFFLINE"] == os.environ["PIP_NO_INDEX"] == "1"
    assert hub.seen == []


def test_files_in_the_cache_of_other_programs_are_taken_from_there(
    project: Project, hub: HubServer, tmp_path: Path
) -> None:
    lock_model(project, "tiny", patience=QUICK)
    snapshot = tmp_path / "hub-cache" / "models--some--tiny" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / WEIGHTS).symlink_to(hub.folder / WEIGHTS)
    fetch_model(project, "tiny", patience=QUICK)
    assert hub.asked(WEIGHTS) == []


def test_large_download_asks_for_room_on_disk_and_in_memory_first(project: Project, hub: HubServer) -> None:
    def enormous(siblings: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for sibling in siblings:
            if sibling["rfilename"] == WEIGHTS:
                sibling["lfs"]["size"] = 900_000_000_000_000
        return siblings

    hub.change_listing = enormous
    error = fail(project)
    assert "tiny has 900,000.0 GB of weights; this machine has" in error.what
    assert error.exit_code == Exit.ENVIRONMENT
    assert hub.asked(WEIGHTS) == []


# What is published


@pytest.mark.parametrize(
    ("published", "said"),
    [
        ({"layers": 3}, "layers: published 3, found 2"),
        ({"bits": 4, "group_size": 64}, "bits: published 4, found nothing"),
        ({"weight_bytes": 5_000_000_000}, "published about 5,000,000,000 bytes"),
    ],
)
def test_other_model_than_the_published_one_is_refused_before_its_weights_are_asked_for(
    project: Project, hub: HubServer, published: dict[str, int], said: str
) -> None:
    define(project, published={**published, "sources": ["its page"]})
    error = fail(project)
    assert said in error.what
    assert error.exit_code == Exit.VERIFICATION
    assert hub.asked(WEIGHTS) == []
    assert not project.models_lock.exists()
    local = {"source": {"kind": "local", "path": str(hub.folder)}, "license": "MIT"}
    (hub.folder / "pytorch_model.bin").unlink()
    local["published"] = {**published, "sources": ["its page"]}
    project.models_file.write_text(json.dumps({"models": {"here": local}}))
    assert said in fail(project, "here").what


# Connections that fail


@pytest.mark.parametrize("fault", [Dies, Stalls])
def test_connection_that_dies_or_stalls_half_way_goes_on_from_there(
    project: Project, hub: HubServer, fault: type[Dies] | type[Stalls]
) -> None:
    size = (hub.folder / WEIGHTS).stat().st_size
    hub.faults[WEIGHTS] = [fault(after=size // 2), fault(after=100)]
    fetch_model(project, "tiny", patience=QUICK)
    assert files(project)[WEIGHTS] == sha256_file(hub.folder / WEIGHTS)
    ranges = [seen.range for seen in hub.asked(WEIGHTS) if seen.cdn]
    assert ranges == [None, f"bytes={size // 2}-", f"bytes={size // 2 + 100}-"]


def test_server_without_ranges_is_asked_from_the_start(project: Project, hub: HubServer) -> None:
    hub.knows_ranges = False
    hub.faults[WEIGHTS] = [Dies(after=1000)]
    fetch_model(project, "tiny", patience=QUICK)
    assert files(project)[WEIGHTS] == sha256_file(hub.folder / WEIGHTS)


def test_connection_that_stays_dead_is_given_up_and_the_part_is_kept(project: Project, hub: HubServer) -> None:
    size = (hub.folder / WEIGHTS).stat().st_size
    hub.faults[WEIGHTS] = [Dies(after=1000), *[Stalls(after=0)] * 3]
    error = fail(project)
    assert f"stopped after 1,000 of {size:,} bytes" in error.what
    assert error.exit_code == Exit.ENVIRONMENT
    assert part(project).stat().st_size == 1000
    hub.faults.clear()
    fetch_model(project, "tiny", patience=QUICK)
    assert hub.asked(WEIGHTS)[-1].range == "bytes=1000-"
    assert files(project)[WEIGHTS] == sha256_file(hub.folder / WEIGHTS)


def test_download_that_is_killed_goes_on_where_it_was(project: Project, hub: HubServer) -> None:
    lock_model(project, "tiny", patience=QUICK)
    hub.faults[WEIGHTS] = [Stalls(after=5000)]
    code = (
        "import sys; from pathlib import Path; from specprefill_repro.models.fetch import fetch_model\n"
        "from specprefill_repro.project import Project; fetch_model(Project(Path(sys.argv[1])), 'tiny')"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(project.root)])
    try:
        deadline = time.monotonic() + 60
        while not (part(project).exists() and part(project).stat().st_size == 5000):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert part(project).stat().st_size == 5000
    fetch_model(project, "tiny", patience=QUICK)
    assert hub.asked(WEIGHTS)[-1].range == "bytes=5000-"
    assert files(project)[WEIGHTS] == sha256_file(hub.folder / WEIGHTS)


def test_shard_that_is_shorter_than_the_hub_says_is_not_taken(project: Project, hub: HubServer) -> None:
    content = (hub.folder / WEIGHTS).read_bytes()
    lock_model(project, "tiny", patience=QUICK)
    (hub.folder / WEIGHTS).write_bytes(content[:-10])
    error = fail(project)
    assert f"{len(content) - 10:,} of {len(content):,} bytes" in str(error) or "416" in str(error)
    assert not project.model_folder("tiny").exists()


def test_file_that_is_longer_than_the_hub_says_is_thrown_away(project: Project, hub: HubServer) -> None:
    hub.faults[WEIGHTS] = [Sends((hub.folder / WEIGHTS).read_bytes() + bytes(1000))]
    error = fail(project)
    assert "more than the" in error.what
    assert error.exit_code == Exit.VERIFICATION
    assert not part(project).exists()


def test_other_bytes_of_the_same_length_stop_with_both_hashes_and_the_good_copy_stays(
    project: Project, hub: HubServer
) -> None:
    fetch_model(project, "tiny", patience=QUICK)
    good = files(project)
    hub.commit = OTHER
    write_tiny_model(hub.folder, seed=1)
    lock_model(project, "tiny", patience=QUICK)
    content = bytearray((hub.folder / WEIGHTS).read_bytes())
    content[-1] ^= 1
    hub.faults[WEIGHTS] = [Sends(bytes(content))]
    error = fail(project)
    assert error.exit_code == Exit.VERIFICATION
    assert sha256_file(hub.folder / WEIGHTS) in error.what
    assert hashlib.sha256(content).hexdigest() in error.what
    assert files(project) == good
    fetch_model(project, "tiny", patience=QUICK)  # the wrong file is not taken again
    assert files(project)[WEIGHTS] == sha256_file(hub.folder / WEIGHTS)


def test_small_file_that_is_not_the_listed_blob_is_not_locked(project: Project, hub: HubServer) -> None:
    content = (hub.folder / "config.json").read_bytes()
    hub.faults["config.json"] = [Sends(content.replace(b"2", b"3", 1))]
    error = fail(project)
    assert "config.json is not what the Hub lists" in error.what
    assert not project.models_lock.exists()


def test_too_many_requests_are_waited_for_when_the_wait_is_short(project: Project, hub: HubServer) -> None:
    busy = Answers(429, {"Retry-After": "0"})
    hub.faults.update({LISTING: [busy], "config.json": [busy], WEIGHTS: [busy, busy]})
    fetch_model(project, "tiny", patience=QUICK)
    assert files(project)[WEIGHTS] == sha256_file(hub.folder / WEIGHTS)


@pytest.mark.parametrize("file", [LISTING, WEIGHTS])
def test_too_many_requests_with_a_long_wait_are_said_at_once(project: Project, hub: HubServer, file: str) -> None:
    hub.faults[file] = [Answers(429, {"Retry-After": "3600"})]
    error = fail(project)
    assert "too many requests (429). The Hub asks to wait 3,600 seconds." in error.what
    assert error.exit_code == Exit.ENVIRONMENT


def test_server_that_fails_is_asked_as_often_as_patience_says(project: Project, hub: HubServer) -> None:
    hub.faults[LISTING] = [Answers(503)] * 10
    assert "503" in str(fail(project))
    assert len(hub.asked(LISTING)) == QUICK.attempts


# Servers that refuse


def test_wrong_token_gated_private_and_unknown_are_told_apart(
    project: Project, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = TOKEN
    assert "is private and no token is set" in fail(project).why
    monkeypatch.setenv("HF_TOKEN", "hf_wrong_token_of_the_user")
    assert "token was refused (401)" in fail(project).what
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.gated = True
    error = fail(project)
    assert "it is gated" in error.what
    assert "HF_TOKEN" in error.next
    hub.gated = False
    fetch_model(project, "tiny", patience=QUICK)
    hub.token = None
    source = {"kind": "hf", "repository": "some/typo"}
    project.models_file.write_text(json.dumps({"models": {"tiny": {"source": source, "license": "MIT"}}}))
    project.models_lock.unlink()
    assert "Could not get some/typo" in fail(project).what
    define(project, revision=OTHER)
    error = fail(project)
    assert f"at {OTHER}: not found (404)" in error.what
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be reached" in fail(project).why


def test_token_goes_to_the_hub_and_nowhere_else(
    project: Project, hub: HubServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    hub.token = TOKEN
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.faults[WEIGHTS] = [Dies(after=10), Answers(404), Answers(500, {"X-Error-Message": f"no {TOKEN} here"})]
    errors = [fail(project)]
    hub.faults[WEIGHTS] = [Answers(500, {"X-Error-Message": f"no {TOKEN} here"})] * 3
    errors.append(fail(project))
    fetch_model(project, "tiny", patience=QUICK)
    assert {seen.token for seen in hub.seen if not seen.cdn} == {TOKEN}
    assert {seen.token for seen in hub.seen if seen.cdn} == {None}, "the token went on to where the files lie"
    written = [path for path in project.root.rglob("*") if path.is_file()]
    for text in [*map(str, errors), caplog.text, *(path.read_bytes().decode(errors="replace") for path in written)]:
        assert TOKEN not in text
    assert not any(SIGNATURE in str(error) for error in errors)


@pytest.mark.parametrize("pinned", [True, False])
def test_mirror_that_gives_another_commit_is_refused(project: Project, hub: HubServer, pinned: bool) -> None:
    if pinned:
        define(project, revision=COMMIT)
    else:
        lock_model(project, "tiny", patience=QUICK)
    hub.commit = OTHER
    hub.answers_any_revision = True
    error = fail(project)
    assert error.exit_code == Exit.VERIFICATION
    assert f"expected {COMMIT}" in error.what
    assert f"found    {OTHER}" in error.what


def test_pinned_commit_that_is_gone_is_said(project: Project, hub: HubServer) -> None:
    lock_model(project, "tiny", patience=QUICK)
    hub.commit = OTHER
    assert f"{REPOSITORY} at {COMMIT}: not found (404)" in fail(project).what


# Repositories that are hostile or broken


@pytest.mark.parametrize("path", ["../model.safetensors", "/tmp/model.safetensors", "a/../../x.json", "a\\..\\x"])
def test_listed_path_that_escapes_is_refused(project: Project, hub: HubServer, path: str) -> None:
    hub.change_listing = lambda siblings: [*siblings, {"rfilename": path, "size": 10}]
    error = fail(project)
    assert "leads out of its folder" in error.what
    assert error.exit_code == Exit.VERIFICATION
    assert [seen.path for seen in hub.seen] == [LISTING]


@pytest.mark.parametrize("place", ["../../model-x.safetensors", "pytorch_model.bin", "/etc/model.safetensors", 7, None])
def test_index_that_names_other_files_is_refused(project: Project, hub: HubServer, place: object) -> None:
    (hub.folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": place}}))
    error = fail(project)
    assert "not an index of weights" in error.what
    assert error.exit_code == Exit.VERIFICATION
    assert hub.asked(WEIGHTS) == []


def test_index_that_names_a_shard_that_is_not_there_is_refused(project: Project, hub: HubServer) -> None:
    weight_map = {"a": WEIGHTS, "b": "model-00002-of-00002.safetensors"}
    (hub.folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert "its index names 1 files that it lacks, such as model-00002-of-00002" in fail(project).what
    assert hub.asked(WEIGHTS) == []


def test_pickled_weights_alone_are_refused(project: Project, hub: HubServer) -> None:
    (hub.folder / WEIGHTS).unlink()
    error = fail(project)
    assert "no safetensors, only pytorch_model.bin" in error.what
    assert "can run code" in error.why
    assert hub.asked("pytorch_model.bin") == []


@pytest.mark.parametrize("name", ["model.safetensors.index.json", "config.json", "tokenizer.json"])
def test_enormous_text_file_is_refused_before_it_is_downloaded(project: Project, hub: HubServer, name: str) -> None:
    def swollen(siblings: list[dict[str, Any]]) -> list[dict[str, Any]]:
        others = [sibling for sibling in siblings if sibling["rfilename"] != name]
        return [*others, {"rfilename": name, "size": 300_000_000}]

    hub.change_listing = swollen
    error = fail(project)
    assert f"{name} has 300,000,000 bytes, more than" in error.what
    assert hub.asked(name) == []


def test_code_of_the_repository_is_neither_taken_nor_run(project: Project, hub: HubServer, tmp_path: Path) -> None:
    (hub.folder / "modeling.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((hub.folder / name).read_text())
        content["auto_map"] = {"AutoConfig": "modeling.Config", "AutoTokenizer": ["modeling.Tokenizer", None]}
        (hub.folder / name).write_text(json.dumps(content))
    fetch_model(project, "tiny", patience=QUICK)
    code = (
        "import sys; from pathlib import Path; from specprefill_repro.prefill.loading import load_model\n"
        "from specprefill_repro.prompts.tokenizer import load_tokenizer\n"
        "load_model(Path(sys.argv[1])); load_tokenizer(Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", code, project.model_folder("tiny")], check=True)
    assert not (tmp_path / "ran").exists()
    assert set(files(project)) == TAKEN
    assert hub.asked("modeling.py") == []


def test_full_disk_keeps_what_came_and_the_lock(
    project: Project, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = np.zeros(6_000_000, dtype=np.float16)
    save_file({**load_file(hub.folder / WEIGHTS), "more": weights}, hub.folder / WEIGHTS, metadata={"format": "mlx"})
    lock_model(project, "tiny", patience=QUICK)
    lock = project.models_lock.read_bytes()
    shutil.rmtree(project.results)
    project.results.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(project.results)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting needs root")
    try:
        error = fail(project)
        assert error.exit_code == Exit.ENVIRONMENT
        assert "tiny needs about" in error.what and "MB are free" in error.what
        assert hub.asked(WEIGHTS) == []
        monkeypatch.setattr("specprefill_repro.models.repository.require_room", lambda *arguments: None)
        assert "the disk is full" in fail(project).what
        assert 0 < part(project).stat().st_size < (hub.folder / WEIGHTS).stat().st_size
        subprocess.run(["mount", "-o", "remount,size=64m", str(project.results)], check=True)
        fetch_model(project, "tiny", patience=QUICK)
        assert hub.asked(WEIGHTS)[-1].range is not None
        assert files(project)[WEIGHTS] == sha256_file(hub.folder / WEIGHTS)
    finally:
        subprocess.run(["umount", str(project.results)], check=True)
    assert project.models_lock.read_bytes() == lock


def test_progress_counts_bytes_up_to_the_whole(project: Project, hub: HubServer) -> None:
    told: list[tuple[str, int, int]] = []
    fetch_model(project, "tiny", lambda *event: told.append(event), QUICK)
    downloads = [(done, total) for step, done, total in told if step == "download tiny"]
    assert downloads[-1] == (sum((hub.folder / name).stat().st_size for name in TAKEN),) * 2
