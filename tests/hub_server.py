"""A small Hugging Face Hub on loopback: the endpoints that the official client asks when it reads a model, or
uploads to a Space.

    with HubServer(folder) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)

The files of `folder` are the repository some/tiny at the commit `hub.commit`. Large files are told with their SHA-256,
as those in LFS or Xet are, and lie on a second server (the "CDN") that a signed address leads to. What goes wrong is
said per file: `hub.faults["model.safetensors"] = [Dies(after=100)]`; each fault is for one request, in turn.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

REPOSITORY = "some/tiny"
COMMIT = "c0ffee" + "0" * 34
LARGE = (".safetensors", "tokenizer.json")
SIGNATURE = "secret-of-the-address"


@dataclass(frozen=True)
class Answers:
    """Another status than success."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Dies:
    """The connection is closed after so many bytes of the body."""

    after: int


@dataclass(frozen=True)
class Stalls:
    """Nothing comes any more after so many bytes of the body; the connection stays open."""

    after: int


@dataclass(frozen=True)
class Sends:
    """Another content."""

    content: bytes


Fault = Answers | Dies | Stalls | Sends
LISTING = "listing"
"""The key of faults of the answer that lists the repository."""


@dataclass(frozen=True)
class Seen:
    path: str
    range: str | None
    token: str | None
    cdn: bool


@dataclass
class Space:
    """A Space: its commits, oldest first, each with all files."""

    sdk: str
    commits: list[dict[str, bytes]]

    @property
    def sha(self) -> str:
        return f"{len(self.commits):040x}"


class Spaces:
    """The endpoints that the official client asks when it makes a static Space and uploads to it."""

    def __init__(self) -> None:
        self.made: dict[str, Space] = {}
        self.token = "hf_" + "w" * 20
        """Without it, nothing is written."""
        self.refuses: dict[str, int] = {}
        """Status by the last part of a path that says what is asked, such as `commit`."""
        self.before_commit: Callable[[], None] = lambda: None
        self.uploaded: dict[str, bytes] = {}

    def answer(self, address: str, method: str, path: str, token: str | None, body: bytes) -> tuple[int, Any]:
        """Status, and an answer: JSON or bytes."""
        if method == "PUT" and path.startswith("/lfs/"):
            content_sha = hashlib.sha256(body).hexdigest()
            self.uploaded[content_sha] = body
            return (200, {}) if path == f"/lfs/{content_sha}" else (400, {})
        parts = path.strip("/").split("/")
        if method == "GET":
            space = self.made.get("/".join(parts[2:4] if parts[0] == "api" else parts[1:3]))
            if space is None:
                return 404, {"error": "Repository not found"}
            if parts[0] == "api":
                siblings = [{"rfilename": name} for name in space.commits[-1]]
                return 200, {"id": "/".join(parts[2:4]), "sha": space.sha, "siblings": siblings, "sdk": space.sdk}
            content = space.commits[int(parts[4], 16) - 1].get("/".join(parts[5:]))
            return (404, {"error": "Entry not found"}) if content is None else (200, content)
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if token != self.token:
            return 401, {"error": "Invalid username or password."}
        for asked, status in self.refuses.items():
            if asked in parts:
                return status, {"error": "refused by the test"}
        if path == "/api/repos/create":
            asked_for = json.loads(body)
            name = f"{asked_for.get('organization', 'someone')}/{asked_for['name']}"
            if name in self.made:
                return 409, {"error": "You already created this space repo", "url": f"{address}/spaces/{name}"}
            self.made[name] = Space(asked_for["sdk"], [{".gitattributes": b"*.zip filter=lfs"}])
            return 200, {"url": f"{address}/spaces/{name}"}
        if parts[-1] == "batch":
            return 200, {
                "transfer": "basic",
                "objects": [
                    {**each, "actions": {"upload": {"href": f"{address}/lfs/{each['oid']}"}}}
                    for each in json.loads(body)["objects"]
                ],
            }
        space = self.made["/".join(parts[2:4])]
        if parts[4] == "preupload":
            files = [
                {
                    "path": each["path"],
                    "uploadMode": "lfs" if each["path"].endswith((".zip", ".parquet")) else "regular",
                    "shouldIgnore": False,
                }
                for each in json.loads(body)["files"]
            ]
            return 200, {"files": files}
        self.before_commit()
        return self._commit(
            f"{address}/spaces/{'/'.join(parts[2:4])}", space, [json.loads(line) for line in body.splitlines()]
        )

    def _commit(self, address: str, space: Space, lines: list[dict[str, Any]]) -> tuple[int, Any]:
        files = dict(space.commits[-1])
        for line in lines:
            value = line["value"]
            if line["key"] == "header" and value.get("parentCommit") not in (None, space.sha):
                return 412, {"error": "A commit has happened since. Please refresh and try again."}
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            if line["key"] == "lfsFile":
                files[value["path"]] = self.uploaded[value["oid"]]
        space.commits.append(files)
        return 200, {"success": True, "commitOid": space.sha, "commitUrl": f"{address}/commit/{space.sha}"}


class HubServer:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commit = COMMIT
        self.token: str | None = None
        """When set, nothing is told without it."""
        self.gated = False
        """When set, the files are refused although the repository is listed."""
        self.tells_hashes = True
        self.knows_ranges = True
        self.answers_any_revision = False
        self.change_listing: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = lambda siblings: siblings
        self.faults: dict[str, list[Fault]] = {}
        self.seen: list[Seen] = []
        self.spaces = Spaces()
        self._closing = threading.Event()
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), self._handler(cdn)) for cdn in (False, True)]
        self.address, self.cdn = (f"http://127.0.0.1:{server.server_port}" for server in self._servers)
        self._threads = [
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}) for server in self._servers
        ]

    def __enter__(self) -> "HubServer":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()

    def asked(self, path: str) -> list[Seen]:
        """The requests for the content of a file."""
        return [seen for seen in self.seen if seen.path == path]

    def siblings(self) -> list[dict[str, Any]]:
        """The files as the Hub lists them."""
        listing = []
        for file in sorted(path for path in self.folder.rglob("*") if path.is_file()):
            content = file.read_bytes()
            name = str(file.relative_to(self.folder))
            sibling: dict[str, Any] = {"rfilename": name, "size": len(content)}
            if self.tells_hashes and name.endswith(LARGE):
                sha256 = hashlib.sha256(content).hexdigest()
                sibling["lfs"] = {"size": len(content), "sha256": sha256, "pointerSize": 134}
                sibling["blobId"] = "0" * 40
            elif self.tells_hashes:
                sibling["blobId"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            listing.append(sibling)
        return self.change_listing(listing)

    def _handler(self, cdn: bool) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.answer_for_spaces()

            def do_PUT(self) -> None:
                self.answer_for_spaces()

            def answer_for_spaces(self) -> None:
                size = self.headers.get("Content-Length")
                body = self.rfile.read(int(size)) if size is not None else self.read_chunks()
                token = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
                path = unquote(urlsplit(self.path).path)
                status, content = hub.spaces.answer(hub.address, self.command, path, token, body)
                sent = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                if status == 404:
                    self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            def read_chunks(self) -> bytes:
                body = b""
                while self.headers.get("Transfer-Encoding") == "chunked":
                    size = int(self.rfile.readline(), 16)
                    body += self.rfile.read(size)
                    self.rfile.readline()
                    if size == 0:
                        break
                return body

            def do_GET(self) -> None:
                path = unquote(urlsplit(self.path).path)
                if path.startswith(("/api/spaces/", "/spaces/")):
                    self.answer_for_spaces()
                    return
                key = LISTING if path.startswith("/api/") else path.split("/", 5)[-1]
                token = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
                hub.seen.append(Seen(key, self.headers.get("Range"), token, cdn))
                waiting = hub.faults.get(key, [])
                fault = None
                # A file that lies on the CDN has its faults there.
                if waiting and (cdn or not self.leads_to_cdn(path, key)):
                    fault = waiting.pop(0)
                if isinstance(fault, Answers):
                    self.refuse(fault.status, fault.headers)
                elif cdn:
                    self.send_file(key, fault)
                elif hub.token is not None and token != hub.token:
                    message = "Invalid credentials in Authorization header" if token else "Repository not found"
                    self.refuse(401, {"X-Error-Message": message})
                elif path.startswith((f"/api/models/{REPOSITORY}/revision/", f"/api/models/{REPOSITORY}")):
                    self.send_listing(path, fault)
                elif not path.startswith(f"/{REPOSITORY}/resolve/"):
                    self.refuse(404, {"X-Error-Code": "RepoNotFound"})
                elif hub.gated:
                    self.refuse(403, {"X-Error-Code": "GatedRepo"})
                elif path.split("/")[4] != hub.commit and not hub.answers_any_revision:
                    self.refuse(404, {"X-Error-Code": "RevisionNotFound"})
                elif not (hub.folder / key).is_file():
                    self.refuse(404, {"X-Error-Code": "EntryNotFound"})
                elif self.leads_to_cdn(path, key):
                    self.send_response(302)
                    self.send_header("X-Repo-Commit", hub.commit)
                    self.send_header("Location", f"{hub.cdn}/-/-/-/-/{key}?Signature={SIGNATURE}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                else:
                    self.send_file(key, fault)

            def leads_to_cdn(self, path: str, key: str) -> bool:
                return "/resolve/" in path and key.endswith(LARGE)

            def send_listing(self, path: str, fault: Fault | None) -> None:
                asked = path.partition("/revision/")[2]
                if asked not in ("", "main", hub.commit) and not hub.answers_any_revision:
                    self.refuse(404, {"X-Error-Code": "RevisionNotFound"})
                    return
                info = {"id": REPOSITORY, "modelId": REPOSITORY, "sha": hub.commit, "siblings": hub.siblings()}
                self.send_body(json.dumps(info).encode(), fault)

            def send_file(self, key: str, fault: Fault | None) -> None:
                self.send_body((hub.folder / key).read_bytes(), fault)

            def send_body(self, content: bytes, fault: Fault | None) -> None:
                if isinstance(fault, Sends):
                    content = fault.content
                first = 0
                wanted = self.headers.get("Range", "")
                if hub.knows_ranges and wanted.startswith("bytes="):
                    first = int(wanted.removeprefix("bytes=").partition("-")[0])
                    if first >= len(content):
                        self.refuse(416, {"Content-Range": f"bytes */{len(content)}"})
                        return
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
                else:
                    self.send_response(200)
                self.send_header("Content-Length", str(len(content) - first))
                if not cdn:
                    self.send_header("X-Repo-Commit", hub.commit)
                self.end_headers()
                body = content[first:]
                if isinstance(fault, Dies | Stalls):
                    self.wfile.write(body[: fault.after])
                    self.wfile.flush()
                    if isinstance(fault, Stalls):
                        hub._closing.wait(60)
                    self.close_connection = True
                    return
                self.wfile.write(body)

            def refuse(self, status: int, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": "0"}.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        return Handler
