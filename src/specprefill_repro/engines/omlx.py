"""The server oMLX as the user has it, a command or a checkout of its source, from 0.3.5.dev1 on.

It honours its SpecPrefill settings only in streaming chat requests, and stays silent where it does not. So every trial
is a fresh server, with settings written before its start and without caches, judged by its log (engines/omlx_log.py).
"""

import http.client
import json
import os
import plistlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

from specprefill_repro.engines.chat import ChatAnswer
from specprefill_repro.engines.history import Effect, load_history, read_config
from specprefill_repro.engines.known_faults import faults_fingerprint, refuse_other_tokenizer
from specprefill_repro.engines.omlx_log import Loading, Request, read_loading, read_request
from specprefill_repro.engines.server import HOST, Limits, Server, connection
from specprefill_repro.engines.server_evidence import LogClaims, Scored, kept_bounds
from specprefill_repro.engines.server_trial import Start, measure_on_server, new_secret
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import content_id, read_limited, sha256_file, users_path, write_json
from specprefill_repro.prefill.blas import STOCK, preloaded_blas
from specprefill_repro.project import Project
from specprefill_repro.study.engines import OmlxEngine
from specprefill_repro.study.plan import ArmKind
from specprefill_repro.trials.job import Job, Measurement

KIND = "omlx"
PACKAGES = (KIND, "mlx", "mlx-lm", "mlx-vlm", "mlx-metal", "mlx-cpu", "transformers", "tokenizers")
UNKNOWN = "unknown"
LONGEST = 2_000_000
"""Tokens of context; its own default refuses longer prompts than 32,768."""
ADMIN_SECONDS = 60.0
LOAD_SECONDS = 1800.0
MAX_REPLY_BYTES = 10_000_000
BANNER = re.compile(r"Version: (\d[\w.+-]*)")
INFO = Path("Contents") / "Info.plist"
"""What a macOS application says of itself, its version among it; a text of XML, or Apple's binary form."""
MAX_INFO_BYTES = 1_000_000
MAX_SCRIPT_BYTES = 10_000
LOADED_INSIDE = re.compile(r"Loading model: \S+")


@dataclass(frozen=True)
class Source:
    """What is run: the beginning of the command, and what is known of it before it runs."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    interpreter: str | None
    """Python that runs it; None when that is not known."""
    version: str
    commit: str | None
    """Of a checkout; `+changes` when the work tree differs from it."""
    identity: str
    """Changes when what is run changes."""
    private: Mapping[str, str]


@dataclass(frozen=True)
class Omlx:
    project: Project
    given: OmlxEngine
    limits: Limits = field(default_factory=Limits)
    timed_tokens: int | None = None
    """It streams in both arms, so the first token of the whole answer is the one that is timed."""
    name: str = KIND
    needs_machine: bool = True

    @property
    def threshold(self) -> int:
        return self.given.threshold

    def code(self, arms: Iterable[ArmKind]) -> tuple[str, ...]:
        return (__name__,)

    def settings(self) -> Mapping[str, str]:
        source = find_source(self.given)
        return {
            "engine environment": source.identity,
            "engine faults": faults_fingerprint(load_history(self.project.config), KIND, source.version),
            "engine settings": content_id([self.given.threshold, settings_file(HOST, 0, "")]),
        }

    def measure(self, job: Job, lease: int | None) -> Measurement:
        return measure_on_server(self, job, lease, self.limits)

    def prepare(self, job: Job, folder: Path, port: int) -> Start:
        if job.draft_folder:
            refuse_other_tokenizer(KIND, {"target": job.target_folder, "draft": job.draft_folder})
        source = find_source(self.given)
        base, served = folder / "base", folder / "models"
        # A name that no other server knows, so that an answer of another one is noticed.
        model, key = f"target-{new_secret()}", f"key-{new_secret()}{new_secret()}"
        base.mkdir()
        served.mkdir()
        (served / model).symlink_to(job.target_folder)
        settings, of_model = settings_file(HOST, port, str(served)), self._model_settings(job)
        write_json(base / "settings.json", settings)
        write_json(base / "model_settings.json", {"version": 1, "models": {model: of_model}})
        preload, blas = preloaded_blas(folder)
        shown = {**of_model, "specprefill_draft_model": Path(job.draft_folder).name} if job.draft_folder else of_model
        commit = {"omlx commit": source.commit} if source.commit else {}
        return Start(
            # Host, port and key come by file and environment: what stands on its command line the server writes to
            # settings.json, the key with it, and any user of the machine can read a command line.
            command=(*source.command, "serve", "--base-path", str(base), "--no-cache"),
            model=model,
            environment={
                **source.environment,
                **preload,
                "OMLX_HOST": HOST,
                "OMLX_PORT": str(port),
                "OMLX_MODEL_DIR": str(served),
                "OMLX_API_KEY": key,
                "OMLX_SECRET_KEY": new_secret() + new_secret(),
            },
            headers={"Authorization": f"Bearer {key}"},
            private={key: "[key]", model: "target", **source.private},
            facts={
                **(packages(source.interpreter) if source.interpreter else {}),
                # Of a checkout its own, whatever else that Python has installed.
                KIND: source.version,
                **commit,
                "blas": blas,
                "server options": "serve --no-cache; model settings " + json.dumps(shown, sort_keys=True),
            },
        )

    def _model_settings(self, job: Job) -> dict[str, Any]:
        if job.draft_folder is None:
            return {"specprefill_enabled": False, "dflash_enabled": False}
        return {
            "specprefill_enabled": True,
            "specprefill_draft_model": job.draft_folder,
            "specprefill_keep_pct": job.arm.keep,
            "specprefill_threshold": self.threshold,
            # DFlash is another engine; it would take the model and never apply SpecPrefill.
            "dflash_enabled": False,
        }

    def load(self, server: Server, start: Start) -> Mapping[str, str]:
        """Load the model and see that it is loaded.

        Newer versions load by an address that takes the key; older ones by one of the administrator's, who logs in.
        """
        port, headers = server.port, dict(start.headers)
        status, said, _ = _call(port, f"/v1/models/{start.model}/load", {}, headers, LOAD_SECONDS)
        if status in (http.client.NOT_FOUND, http.client.METHOD_NOT_ALLOWED):
            key = headers["Authorization"].removeprefix("Bearer ")
            login, said, cookie = _call(port, "/admin/api/login", {"api_key": key, "remember": False}, {})
            if login != http.client.OK:
                raise _did_not_load(f"the login of the administrator was answered {login}: {said}")
            # Some take the key here too, some the cookie alone.
            admin = {**headers, "Cookie": cookie.partition(";")[0]}
            status, said, _ = _call(port, f"/admin/api/models/{start.model}/load", {}, admin, LOAD_SECONDS)
        if status != http.client.OK:
            raise _did_not_load(f"it answered {status}: {said}")
        status, said, _ = _call(port, "/v1/models/status", None, headers)
        models = _object(said).get("models") if status == http.client.OK else None
        listed = [each for each in models if isinstance(each, dict)] if isinstance(models, list) else []
        entry = next((each for each in listed if each.get("id") == start.model), None)
        if entry is None or not entry.get("loaded"):
            raise _did_not_load("it says that it loaded the model, and does not list it as loaded")
        status, said, _ = _call(port, "/api/status", None, headers)
        version = _object(said).get("version") if status == http.client.OK else None
        found = {"omlx engine type": str(entry.get("engine_type", UNKNOWN))}
        if isinstance(version, str):
            found[KIND] = version
        if not server.holds(start.environment.get("LD_PRELOAD")):
            found["blas"] = STOCK
        return found

    def request(self, job: Job, text: str) -> dict[str, Any]:
        # As our own rendering of the chat template: answers without a reasoning part.
        return {"chat_template_kwargs": {"enable_thinking": False}}

    def read_log(self, job: Job, started: str, request: str) -> LogClaims:
        loading, asked = read_loading(started.splitlines()), read_request(request.splitlines())
        # Loading within the request makes the time of any arm another one.
        failures = [line for line in (loading.failure, asked.failure) if line] + list(_loaded_inside(request))
        scored = Scored(
            scored=asked.tokens_scored,
            kept=asked.tokens_read or 0,
            total=asked.tokens_scored + asked.system_tokens,
            cached=asked.cached_tokens,
            draft_cached=asked.draft_cached_tokens,
            seconds={"score": asked.score_seconds or 0.0, "sparse prefill": asked.sparse_seconds or 0.0},
        )
        return LogClaims(
            armed=loading.draft_loaded,
            scored=(scored,) * asked.times_scored,
            failures=tuple(failures),
            reasons=tuple(self._reasons(job, loading, asked, started)),
            lines=tuple(line.strip() for line in (started + request).splitlines() if _decides(line)),
        )

    def _reasons(self, job: Job, loading: Loading, asked: Request, started: str) -> Iterator[str]:
        if loading.other_engine:
            yield f"an engine without SpecPrefill took the model: {loading.other_engine}"
        if job.draft_folder is None:
            return
        if loading.draft_caches:
            yield "the draft keeps its cache from one request to the next, in spite of --no-cache"
        if asked.tokens_scored and asked.tokens_read is None and not asked.failure:
            yield "the log has a line of scoring and none of the sparse prefill"
        banner = BANNER.search(started)
        version = banner[1] if banner else find_source(self.given).version
        target, draft = read_config(Path(job.target_folder)), read_config(Path(job.draft_folder))
        for trap in load_history(self.project.config).traps(KIND, version, target, draft):
            silently_dense = trap.effect is Effect.DENSE and trap.shown == "nowhere" and not asked.tokens_scored
            if trap.effect is Effect.WRONG or silently_dense:
                yield f"{trap.id} (row {trap.row} of docs/engines.md): {trap.sentence}"

    def cached_tokens(self, answer: ChatAnswer) -> int | None:
        # Older versions name the number only where it is not 0.
        return answer.tokens("prompt_tokens_details.cached_tokens") or answer.tokens("cached_tokens") or 0

    def kept_bounds(self, job: Job) -> tuple[int, int] | None:
        low, high = kept_bounds(len(job.ids), job.arm.keep)
        # The last prompt token starts the answer, whether it was selected or not.
        return low, min(len(job.ids), high + 1)

    def server_seconds(self, answer: ChatAnswer, claims: LogClaims) -> dict[str, float]:
        """Of the log, and of `usage`, where `prompt_eval_duration` is `time_to_first_token` under another name and
        `prompt_tokens_per_second` is all prompt tokens divided by it: one measurement in three fields."""
        fields = ("time_to_first_token", "prompt_eval_duration", "generation_duration", "total_time")
        return {
            **(claims.scored[0].seconds if claims.scored else {}),
            **{name: answer.usage[name] for name in fields if name in answer.usage},
        }


def settings_file(host: str, port: int, models: str) -> dict[str, Any]:
    """Content of settings.json: nothing cached, nothing refused for its length or for memory, no keep-alive events."""
    return {
        "version": "1.0",
        # Where there are no aliases the server looks for some and writes them, and the key with them, to this file.
        "server": {
            "host": host,
            "port": port,
            "log_level": "info",
            "sse_keepalive_mode": "off",
            "server_aliases": [host],
        },
        "model": {"model_dirs": [models] if models else []},
        "memory": {"max_process_memory": "disabled", "prefill_memory_guard": False},
        "cache": {"enabled": False},
        "sampling": {"max_context_window": LONGEST},
        # The real one comes by the environment; with this here the server writes no secret of its own to the file.
        "auth": {"secret_key": "from the environment"},
    }


def find_source(given: OmlxEngine) -> Source:
    """What a study's settings run.

    Raises:
        ReproError: the command or the checkout is not there.
    """
    if given.checkout is not None:
        return _checkout(users_path(given.checkout).resolve(), given.python)
    words = shlex.split(given.command or KIND)
    path = shutil.which(words[0]) if words else None
    if path is None:
        raise ReproError(
            f"The command of oMLX was not found: {given.command or KIND}",
            "oMLX is not on the package index: it comes as a macOS application, by Homebrew, or as a checkout.",
            "Set `command` to the path of its command, or `checkout` and `python`, in the study's `engines`.",
            Exit.ENVIRONMENT,
        )
    files = [Path(word) for word in (path, *words[1:]) if Path(word).is_file()]
    interpreter = _interpreter(Path(path))
    installed = packages(interpreter) if interpreter else {}
    bundles = sorted(set().union(*(_bundles(file.resolve()) for file in files)))
    # A package manager links to another folder when it installs another version; pip leaves the command as it was, and
    # so may an update of an application. A program that is neither is known by when it was written, too.
    parts: list[Any] = [words[1:], [[str(file.resolve()), sha256_file(file)] for file in files], installed]
    if bundles:
        parts.append([sha256_file(bundle / INFO) for bundle in bundles])
    elif not installed:
        parts.append([file.stat().st_mtime_ns for file in files])
    identity = content_id(parts)
    return Source(
        command=(path, *words[1:]),
        environment={},
        interpreter=interpreter,
        version=installed.get(KIND) or next(filter(None, map(_bundle_version, bundles)), UNKNOWN),
        commit=None,
        identity=identity,
        private={str(file.parent): "[omlx]" for file in files if len(file.parts) > 2},
    )


def _bundles(file: Path) -> set[Path]:
    """The macOS applications that a program lies in, or that a small script names."""
    found = {folder for folder in file.parents if folder.suffix == ".app"}
    with file.open("rb") as opened:
        start = opened.read(MAX_SCRIPT_BYTES)
    if start.startswith(b"#!"):
        found |= {Path(os.fsdecode(name)) for name in re.findall(rb"/[^\0\n\"':=$]*?\.app(?=/)", start)}
    return {folder for folder in found if (folder / INFO).is_file()}


def _bundle_version(bundle: Path) -> str | None:
    """The version that an application says it has; None when it says none that can be read."""
    try:
        info = plistlib.loads(read_limited(bundle / INFO, MAX_INFO_BYTES))
    except (ReproError, ExpatError, ValueError, LookupError, TypeError, AttributeError, OverflowError):
        return None
    version = info.get("CFBundleShortVersionString") if isinstance(info, dict) else None
    return version if isinstance(version, str) and re.fullmatch(r"\d[\w.+-]{0,60}", version) else None


def _checkout(folder: Path, python: str | None) -> Source:
    version = folder / "omlx" / "_version.py"
    if not version.is_file():
        raise ReproError(
            f"{folder} is not a checkout of oMLX: it has no omlx/_version.py.",
            "`checkout` names the folder that holds its pyproject.toml.",
            "Correct `checkout` in the study's `engines`.",
            Exit.ENVIRONMENT,
        )
    interpreter = shutil.which(python or "python3")
    if interpreter is None:
        raise ReproError(
            f"The interpreter of oMLX was not found: {python}",
            "`python` names the Python of an environment that holds what the checkout needs.",
            "Make one (docs/engines.md says how) and set `python` in the study's `engines`.",
            Exit.ENVIRONMENT,
        )
    found = re.search(r"""__version__ = ["']([\w.+-]+)["']""", version.read_text(errors="replace")[:2000])
    commit, changes = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain", "--", "omlx")
    named = commit and (f"{commit}+changes" if changes else commit)
    code = sorted((folder / "omlx").rglob("*.py")) if changes or commit is None else []
    return Source(
        command=(interpreter, "-m", "omlx.cli"),
        environment={"PYTHONPATH": str(folder)},
        interpreter=interpreter,
        version=found[1] if found else UNKNOWN,
        commit=named,
        identity=content_id([named, interpreter, packages(interpreter), [sha256_file(file) for file in code]]),
        private={str(folder): "[omlx]"},
    )


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says about a checkout; None where there is no git or no repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _interpreter(command: Path) -> str | None:
    """The Python that a command's first line names."""
    with command.open("rb") as file:
        first = file.readline(300)
    found = re.fullmatch(rb"#!(/\S*python[\d.]*)\s*", first)
    return os.fsdecode(found[1]) if found else None


@cache
def packages(interpreter: str) -> dict[str, str]:
    """Versions of the packages that compute, as that interpreter finds them; those it does not find are left out."""
    code = (
        "import importlib.metadata as m, json, platform\n"
        "found = {'omlx python': platform.python_version()}\n"
        f"for name in {PACKAGES!r}:\n"
        "    try:\n"
        "        found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError:\n"
        "        pass\n"
        "print(json.dumps(found))"
    )
    try:
        done = subprocess.run(
            [interpreter, "-c", code],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return {name: str(value) for name, value in _object(done.stdout).items()}


def _call(
    port: int, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str], limit: float = ADMIN_SECONDS
) -> tuple[int, str, str]:
    """Status, text and cookie of the answer to a request; POST with a body, else GET.

    Raises:
        ReproError: no answer in time.
    """
    content = None if body is None else json.dumps(body).encode()
    try:
        with connection(port, limit) as wire:
            wire.request(
                "GET" if body is None else "POST", path, content, {"Content-Type": "application/json", **headers}
            )
            answer = wire.getresponse()
            text = answer.read(MAX_REPLY_BYTES).decode(errors="replace")
            return answer.status, text, answer.headers.get("Set-Cookie") or ""
    except (OSError, http.client.HTTPException) as error:
        raise ReproError(
            f"The server did not answer {path}: {type(error).__name__} {error}",
            "It died, or hangs, while it loaded the model.",
            "Its log stands above. Run the same command again: finished blocks are kept.",
            Exit.TRIAL,
        ) from error


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _did_not_load(how: str) -> ReproError:
    return ReproError(
        f"oMLX did not load the model: {how[:500]}",
        "This version does not know the model's type, or there is too little memory for target and draft.",
        "Its log stands above. Look at free memory (free -g), or use another version of oMLX.",
        Exit.TRIAL,
    )


def _loaded_inside(request: str) -> Iterator[str]:
    found = LOADED_INSIDE.search(request)
    if found:
        yield f"the model was loaded within the request: {found[0]}"


def _decides(line: str) -> bool:
    return "SpecPrefill" in line or "DFlash" in line or "Engine loaded" in line


def engine(project: Project, settings: OmlxEngine) -> Omlx:
    """The engine of a study's settings; whether it is there is looked at when it is needed."""
    return Omlx(project, settings)
