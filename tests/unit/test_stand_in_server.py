"""The stand-in does what the real servers did: the same follows from flags, request, release and models."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

STAND_IN = Path(__file__).resolve().parent.parent / "stand_in_server.py"
RECORDED = Path(__file__).resolve().parent.parent / "reference" / "engines"
PROMPT = 599
KEY = "a-key-of-this-run"


@dataclass
class Running:
    """One stand-in process and a client for it."""

    process: subprocess.Popen[bytes]
    address: str
    log: Path
    headers: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any, dict[str, str]]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}{path}", data=data, headers=self.headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                content = answer.read().decode()
                return answer.status, content, dict(answer.headers)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), dict(error.headers)

    def chat(self, model: str = "target", *, stream: bool = True, path: str = "chat/completions", **more: Any) -> str:
        body = {"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        if path == "completions":
            body["prompt"] = body.pop("messages")
        status, content, _ = self.get(f"/v1/{path}", {**body, **more})
        assert status == 200, content
        return content

    def said(self) -> str:
        return self.log.read_text()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def _running(folder: Path, before: list[str], serve: list[str], environment: dict[str, str]) -> Iterator[Running]:
    port, log = _free_port(), folder / "printed.log"
    command = [sys.executable, str(STAND_IN), *before, "--prompt-tokens", str(PROMPT), "serve", *serve]
    with log.open("wb") as file:
        if environment:
            environment["OMLX_PORT"] = str(port)
        else:
            command += ["--port", str(port)]
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **environment})
    running = Running(process, f"http://127.0.0.1:{port}", log)
    try:
        deadline = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < deadline:
            try:
                running.get("/health")
                break
            except OSError:
                time.sleep(0.02)
        yield running
    finally:
        process.kill()
        process.wait()


def _models(folder: Path, draft: dict[str, Any] | None = None, target: dict[str, Any] | None = None) -> None:
    for name, config in (("target", target), ("draft", draft)):
        (folder / "models" / name).mkdir(parents=True)
        (folder / "models" / name / "config.json").write_text(json.dumps(config or {"model_type": "llama"}))


@pytest.fixture
def vllm(tmp_path: Path):
    def start(version: str, *flags: str, faults: tuple[str, ...] = (), keep: float = 0.3, **models: Any):
        _models(tmp_path, **models)
        before = ["--as", f"vllm-mlx=={version}", *(part for fault in faults for part in ("--fault", fault))]
        target, draft = tmp_path / "models" / "target", tmp_path / "models" / "draft"
        serve = [str(target), "--served-model-name", "target", "--specprefill-threshold", "128"]
        if "--no-draft" not in flags:
            serve += ["--specprefill-draft-model", str(draft)]
        serve += ["--specprefill", "--specprefill-keep-pct", str(keep), *(f for f in flags if f != "--no-draft")]
        return _running(tmp_path, before, serve, {})

    return start


@pytest.fixture
def omlx(tmp_path: Path):
    def start(
        version: str, *flags: str, faults: tuple[str, ...] = (), settings: dict[str, Any] | None = None, **models
    ):
        _models(tmp_path, **models)
        base = tmp_path / "base"
        base.mkdir()
        (base / "settings.json").write_text(
            json.dumps({"auth": {"secret_key": "elsewhere"}, "server": {"server_aliases": ["localhost"]}})
        )
        (tmp_path / "served").mkdir()
        (tmp_path / "served" / "target").symlink_to(tmp_path / "models" / "target")
        own = {
            "specprefill_enabled": True,
            "specprefill_draft_model": str(tmp_path / "models" / "draft"),
            "specprefill_keep_pct": 0.3,
            "specprefill_threshold": 128,
        }
        content = {"version": 1, "models": {"target": {**own, **(settings or {})}}}
        (base / "model_settings.json").write_text(json.dumps(content))
        before = ["--as", f"omlx=={version}", *(part for fault in faults for part in ("--fault", fault))]
        environment = {"OMLX_API_KEY": KEY, "OMLX_MODEL_DIR": str(tmp_path / "served")}
        return _running(tmp_path, before, ["--base-path", str(base), *flags], environment)

    return start


def _without_numbers(line: str) -> str:
    """A log line without its time, numbers and folders."""
    line = re.sub(r"^[\d-]+ [\d:,]+ - ", "", line)
    return re.sub(r"[\d.]+", "#", re.sub(r"\(\S*/draft\)", "(draft)", line))


def usage(content: str) -> dict[str, Any]:
    events = [json.loads(line[6:]) for line in content.splitlines() if line.startswith("data: {")]
    return next(event["usage"] for event in events if event.get("usage"))


SPARSE = f"SpecPrefill: scored {PROMPT} tokens in [0-9.]+s, sparse prefill 183/{PROMPT} \\(keep=31%\\) in [0-9.]+s"


def test_vllm_0_2_9_runs_sparse_and_sends_everything_at_once(vllm):
    with vllm("0.2.9") as server:
        content = server.chat()
        assert re.search(SPARSE, server.said())
        assert "SpecPrefill failed" not in server.said()
        assert usage(content) == {"prompt_tokens": PROMPT, "completion_tokens": 2, "total_tokens": PROMPT + 2}
        health = json.loads(server.get("/health")[1])
        assert health["model_type"] == "llm" and "engine_type" not in health


@pytest.mark.parametrize(
    ("version", "more", "flags", "models", "line"),
    [
        ("0.6.0", {}, (), {}, "falling back to normal path: 'Attention' object has no attribute 'num_heads'"),
        ("0.6.0", {}, (), {"draft": {"rope_scaling": {"rope_type": "llama3"}}}, "There is no Stream"),
        ("0.2.9", {}, (), {"draft": {"model_type": "qwen3"}}, "num_attention_heads"),
        ("0.2.9", {}, (), {"draft": {"model_type": "gemma4_text"}}, "shared_kv"),
        ("0.2.9", {"max_tokens": 1}, (), {}, "Maximum number of tokens must be non-zero"),
        ("0.2.9", {}, ("--continuous-batching",), {}, None),
        ("0.2.9", {}, ("--mllm",), {}, "MLLM=True"),
        ("0.2.9", {"specprefill": False}, (), {}, None),
        ("0.2.9", {}, ("--specprefill-threshold", "599"), {}, None),
        ("0.2.9", {}, ("--no-draft",), {}, None),
    ],
)
def test_vllm_falls_back_where_the_real_one_does(vllm, version, more, flags, models, line):
    with vllm(version, *flags, **models) as server:
        server.chat(**more)
        said = server.said()
        assert line is None or line in said
        fell_back = "SpecPrefill failed" in said
        assert fell_back or not re.search(SPARSE, said)


def test_a_forced_request_skips_the_threshold_and_a_missing_draft_stays_dense(vllm, tmp_path):
    with vllm("0.2.9", "--specprefill-threshold", "599") as server:
        server.chat(specprefill=True)
        assert re.search(SPARSE, server.said())


def test_vllm_0_6_0_with_a_working_scorer_keeps_whole_shares(vllm):
    with vllm("0.6.0", faults=("scoring-works",), keep=0.31) as server:
        server.chat()
        # Six chunks hold 183 tokens, fewer than 31 % of 599: a seventh is added.
        assert "sparse prefill 183" not in server.said()
        assert f"sparse prefill 215/{PROMPT}" in server.said()


@pytest.mark.parametrize("version", ["0.3.5.dev1", "0.3.9.dev1"])
def test_omlx_runs_sparse_when_streaming_and_says_so_in_two_lines(omlx, tmp_path, version):
    with omlx(version, "--no-cache") as server:
        server.headers["Authorization"] = f"Bearer {KEY}"
        content = server.chat()
        log = (tmp_path / "base" / "logs" / "server.log").read_text()
        assert "SpecPrefill: draft model set (no SSD cache)" in log
        assert f"selected 183/{PROMPT} (keep=31%, prompt {PROMPT} = system 0 + conv {PROMPT}, cached 0)" in log
        assert f"sparse prefill 182/{PROMPT} conv tokens" in log
        counted = usage(content)
        assert counted["time_to_first_token"] == counted["prompt_eval_duration"]
        real = json.loads((RECORDED / f"omlx-{version}.json").read_text())
        assert counted.keys() == real["ways"]["streaming chat"]["usage"].keys()
        ours = {_without_numbers(line) for line in log.replace("[-] - ", "").splitlines() if "SpecPrefill" in line}
        theirs = [line for line in real["started"] + real["ways"]["streaming chat"]["log"] if "SpecPrefill" in line]
        assert ours == {_without_numbers(line) for line in theirs}
        assert ("prompt_tokens_details" in counted) == (version == "0.3.9.dev1")


@pytest.mark.parametrize(
    ("version", "more", "settings", "models"),
    [
        ("0.3.9.dev1", {"stream": False}, {}, {}),
        ("0.3.9.dev1", {"path": "completions"}, {}, {}),
        ("0.3.9.dev1", {}, {"specprefill_threshold": 599}, {}),
        ("0.3.9.dev1", {}, {"specprefill_draft_model": "/nowhere"}, {}),
        ("0.3.9.dev1", {}, {"dflash_enabled": True, "dflash_draft_model": "x"}, {}),
        ("0.3.5.dev1", {}, {}, {"target": {"model_type": "gemma3", "vision_config": {}}}),
    ],
)
def test_omlx_runs_dense_where_the_real_one_does(omlx, tmp_path, version, more, settings, models):
    with omlx(version, "--no-cache", settings=settings, **models) as server:
        server.headers["Authorization"] = f"Bearer {KEY}"
        server.chat(**more)
        assert "sparse prefill" not in (tmp_path / "base" / "logs" / "server.log").read_text()


def test_omlx_caches_as_the_real_one_does_without_its_flag(omlx, tmp_path):
    with omlx("0.3.9.dev1") as server:
        server.headers["Authorization"] = f"Bearer {KEY}"
        assert usage(server.chat())["prompt_tokens_details"]["cached_tokens"] == 0
        assert usage(server.chat())["prompt_tokens_details"]["cached_tokens"] == 512
        assert "draft model set with SSD cache" in (tmp_path / "base" / "logs" / "server.log").read_text()


@pytest.mark.parametrize("version", ["0.3.5.dev1", "0.3.9.dev1"])
def test_omlx_asks_for_its_key_and_loads_as_the_release_does(omlx, tmp_path, version):
    new = version == "0.3.9.dev1"
    with omlx(version, "--no-cache") as server:
        assert server.get("/health")[0] == 200
        assert server.get("/v1/models/status")[0] == 401
        assert server.get("/admin/api/models")[0] == 401
        server.headers["Authorization"] = f"Bearer {KEY}"
        assert server.get("/v1/models/target/load", {})[0] == (200 if new else 404)
        assert server.get("/admin/api/models/target/load", {})[0] == (200 if new else 401)
        status, _, headers = server.get("/admin/api/login", {"api_key": KEY, "remember": False})
        assert status == 200
        server.headers["Cookie"] = headers["Set-Cookie"].partition(";")[0]
        assert server.get("/admin/api/models/target/load", {})[0] == 200
        (model,) = json.loads(server.get("/v1/models/status")[1])["models"]
        assert model["loaded"] and model["engine_type"] == "batched"
        assert json.loads(server.get("/api/status")[1])["version"] == version
        # Host, port and key came by the environment: the key is in no file.
        kept = "".join(path.read_text() for path in (tmp_path / "base").rglob("*") if path.is_file())
        assert KEY not in kept
