"""A Hub model through the real client against a small server of ours: pinned, locked, verified, nothing but data."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from specprefill_repro.models.load import load_lock
from specprefill_repro.models.manifest import check_untouched
from specprefill_repro.project import Project
from tiny_model import write_tiny_model

COMMIT = "c0ffee" + "0" * 34


class Hub:
    """Serves the files of a folder as the repository some/tiny at one commit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(body=True)

            def do_HEAD(self) -> None:
                self.answer(body=False)

            def answer(self, body: bool) -> None:
                path = unquote(urlsplit(self.path).path)
                hub.asked.append(path)
                names = sorted(file.name for file in hub.folder.iterdir())
                if path.startswith("/api/models/some/tiny/tree/"):
                    listing = [
                        {"type": "file", "path": name, "size": (hub.folder / name).stat().st_size, "oid": "0" * 40}
                        for name in names
                    ]
                    self.send(json.dumps(listing).encode(), body)
                elif path.startswith("/api/models/some/tiny"):
                    siblings = [{"rfilename": name, "size": (hub.folder / name).stat().st_size} for name in names]
                    info = {"id": "some/tiny", "modelId": "some/tiny", "sha": COMMIT, "siblings": siblings}
                    self.send(json.dumps(info).encode(), body)
                elif path.startswith(f"/some/tiny/resolve/{COMMIT}/") and path.rsplit("/", 1)[1] in names:
                    self.send((hub.folder / path.rsplit("/", 1)[1]).read_bytes(), body)
                else:
                    self.send_response(404)
                    self.send_header("X-Error-Code", "RepoNotFound")
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def send(self, content: bytes, body: bool) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
                self.send_header("X-Repo-Commit", COMMIT)
                self.end_headers()
                if body:
                    self.wfile.write(content)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = write_tiny_model(tmp_path / "repository")
    (folder / "modeling.py").write_text("raise SystemExit('remote code')")
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    hub = Hub(folder)
    thread = threading.Thread(target=hub.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield hub
    hub.server.shutdown()
    thread.join()
    hub.server.server_close()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path / "project")
    project.config.mkdir(parents=True)
    source = {"kind": "hf", "repository": "some/tiny"}
    project.models_file.write_text(yaml.safe_dump({"models": {"hub": {"source": source, "license": "MIT"}}}))
    return project


def call(project: Project, hub: Hub, function: str, cache: str = "cache", **environment: str) -> str:
    """Run `fetch_model` or `lock_model` in a process of its own, since the client reads its settings on import."""
    code = (
        "import sys; from pathlib import Path; from specprefill_repro.errors import ReproError\n"
        "from specprefill_repro.models import fetch; from specprefill_repro.project import Project\n"
        f"try: fetch.{function}(Project(Path(sys.argv[1])), 'hub')\n"
        "except ReproError as error: print(int(error.exit_code), error)"
    )
    settings = {
        "HF_ENDPOINT": hub.address,
        "HF_HOME": str(project.root / cache),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1",
        **environment,
    }
    unwanted = ("HF_HUB_OFFLINE", "HF_TOKEN", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
    inherited = {key: value for key, value in os.environ.items() if key not in unwanted}
    result = subprocess.run(
        [sys.executable, "-c", code, str(project.root)], capture_output=True, text=True, env={**inherited, **settings}
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_unpinned_then_locked_then_verified_against_the_lock(project: Project, hub: Hub) -> None:
    assert "no revision of some/tiny is pinned" in call(project, hub, "fetch_model")
    assert hub.asked == []
    assert call(project, hub, "lock_model") == ""
    entry = load_lock(project).models["hub"]
    assert entry.source.revision == COMMIT  # type: ignore[union-attr]
    manifest = check_untouched(project, "hub")
    assert manifest.locked
    names = {path.name for path in project.model_folder("hub").glob("[!.]*")}
    assert names == {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
    assert not [path for path in hub.asked if path.endswith((".py", ".bin"))], "code or pickles were downloaded"
    assert call(project, hub, "fetch_model", HF_HUB_OFFLINE="1") == ""

    # The same revision with other bytes: stop with both hashes, and leave the good copy.
    good = (project.model_folder("hub") / "config.json").read_bytes()
    (hub.folder / "config.json").write_bytes(good + b"\n")
    text = project.models_file.read_text()
    project.models_file.write_text(text.replace("repository:", f"revision: {COMMIT}\n      repository:"))
    assert call(project, hub, "fetch_model", cache="empty") == "", "the pinned and the locked revision are one"
    (project.model_folder("hub") / ".manifest.json").unlink()  # so that it must be fetched again
    said = call(project, hub, "fetch_model", cache="empty")
    assert said.startswith("4 ")
    for content in (good, good + b"\n"):
        assert hashlib.sha256(content).hexdigest() in said
    assert (project.model_folder("hub") / "config.json").read_bytes() == good


def test_unknown_repository_and_dead_server_are_told_apart(project: Project, hub: Hub) -> None:
    source = {"kind": "hf", "repository": "some/typo", "revision": COMMIT}
    project.models_file.write_text(yaml.safe_dump({"models": {"hub": {"source": source, "license": "MIT"}}}))
    assert "no such repository or revision" in call(project, hub, "fetch_model")
    dead = call(project, hub, "fetch_model", HF_ENDPOINT="http://127.0.0.1:9")
    assert dead.startswith("3 ")
    assert "cannot be reached" in dead
