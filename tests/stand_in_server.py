"""A stand-in for two servers, vllm-mlx and oMLX: their flags, addresses, events, log lines, settings; no model.

    python stand_in_server.py --as vllm-mlx==0.2.9 [--fault NAME ...] serve MODEL --port P --specprefill ...
    python stand_in_server.py --as omlx==0.3.5.dev1 [--fault NAME ...] serve --base-path B --port P ...

It behaves as the real servers did when they were run (log lines and answers in tests/reference/engines/) and as their
source says. Most ways of silently running dense need no fault: they follow from flags, request, release and the
models' config.json as they do in the real servers. `FAULTS` names the rest. Seconds are `--cost` for each token.

Standard library alone. Prompt tokens are counted with `tokenizers` and `jinja2` where they can be imported, so that
counts agree with the model's own tokenizer; else words are counted. `--prompt-tokens N` sets the number.
"""

import argparse
import hashlib
import json
import logging
import math
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FAULTS = {
    # What does not follow from flags, request, release and models.
    "scoring-fails": "the draft's scoring raises: one ERROR line, then dense",
    "sparse-prefill-fails": "scored, then the target's sparse prefill raises: an ERROR line, then dense",
    "scoring-works": "vllm-mlx 0.3.0 and newer: scoring works all the same, and positions are compacted without a word",
    "position-map-patched": "vllm-mlx 0.3.0 and newer, started by a launcher that mends it",
    "compacted-positions": "sparse, every line as it should be, but the answer is that of compacted positions",
    "draft-unloadable": "the draft can't be loaded; the server starts healthy all the same",
    "stale-settings": "oMLX: the model was loaded before the settings were changed",
    "target-cached": "most of the prompt lies in the target's prefix cache",
    "draft-cached": "most of the prompt lies in the draft's prefix cache",
    "dflash": "oMLX: another engine took the model; SpecPrefill never applies",
    "media": "oMLX: the request is taken as one with media embeddings",
    "ignores-request-keep": "the keep rate of settings and request is not forwarded",
    "compacts-nothing": "sparse with every token kept",
    # How servers behave badly.
    "crashes-at-start": "a traceback, exit status 1",
    "never-ready": "runs, and never opens its port",
    "unhealthy": "the port is open, /health says 503",
    "model-load-fails": "oMLX: the explicit load is answered with 500",
    "dies-mid-answer": "the process exits after the first chunk",
    "dies-slowly": "the connection ends after the first chunk, the process a moment later",
    "hangs": "no event after the role chunk",
    "half-event": "the connection ends in the middle of an event",
    "not-json": "an event that is not JSON",
    "other-model": "answers under another model's name",
    "no-content": "ends without any text",
    "no-finish": "the stream ends after the text: no finish reason, no usage, no [DONE]",
    "no-usage": "no usage chunk",
    "wrong-count": "reports one prompt token more than there are",
    "error-event": "an error inside a 200 stream",
    "refuses": "HTTP 400 with the reason",
    "heartbeats": "comments and empty chunks every few milliseconds while it works",
    "floods-log": "writes --flood-mb of log",
    "key-in-log": "writes the API key into its log",
    "ignores-sigterm": "only SIGKILL ends it",
    "leaves-child": "starts a child in its own process group and leaves it behind",
    "leaves-detached-child": "starts a child in a session of its own and leaves it behind",
    "cached-tokens": "usage counts cached prompt tokens",
}

KEY = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.?(dev|rc)(\d+))?")
LOG = logging.getLogger("stand-in")


def release(text: str) -> tuple[int, ...]:
    """0.3.5.dev1 < 0.3.5.rc1 < 0.3.5."""
    found = KEY.match(text)
    assert found, text
    stage = {"dev": 0, "rc": 1, None: 2}[found[4]]
    return (int(found[1]), int(found[2]), int(found[3]), stage, int(found[5] or 0))


class Server:
    """What is common to both: the clock, the model's folder, how many tokens are kept."""

    def __init__(self, options: argparse.Namespace, name: str, version: str, arguments: list[str]) -> None:
        self.options, self.name, self.version = options, name, version
        self.at_least = lambda text: release(version) >= release(text)
        self.faults = set(options.fault)
        self.arguments = self.parser().parse_args(arguments)
        self.seconds_to_first_text = 0.0

    def parser(self) -> argparse.ArgumentParser:
        raise NotImplementedError

    def work(self, tokens: int, factor: float = 1.0) -> float:
        seconds = tokens * self.options.cost * factor
        time.sleep(seconds)
        return seconds

    def count(self, folder: Path, messages: list[dict[str, Any]] | str) -> int:
        if self.options.prompt_tokens:
            return int(self.options.prompt_tokens)
        text = messages if isinstance(messages, str) else render(folder, messages)
        try:
            from tokenizers import Tokenizer
        except ImportError:
            return len(re.findall(r"\w+|[^\w\s]", text))
        file = folder / "tokenizer.json"
        if not file.exists():
            return len(re.findall(r"\w+|[^\w\s]", text))
        return len(Tokenizer.from_file(str(file)).encode(text, add_special_tokens=False).ids)

    def kept(self, tokens: int, keep: float, tail: int = 0) -> int:
        """Chunks of 32, as many as the share asks for, the last one among them."""
        if "compacts-nothing" in self.faults or keep >= 1:
            return tokens
        chunks = math.ceil(tokens / 32)
        number = max(1, math.ceil(chunks * keep))
        last = tokens - 32 * (chunks - 1)
        kept = 32 * (number - 1) + last
        if self.name == "vllm-mlx" and self.at_least("0.4.0") and kept < math.ceil(tokens * keep):
            kept += 32  # Chunks are added until the share is reached.
        return max(kept, min(tail, tokens))

    def pieces(self, body: dict[str, Any], garbled: bool) -> list[str]:
        text = "Of which the and of a to in" if garbled else self.options.answer
        words = re.findall(r"\s*\S+", text)
        return words[: body.get("max_tokens") or 16]


def config_of(folder: str | Path) -> dict[str, Any]:
    file = Path(folder) / "config.json"
    return json.loads(file.read_text()) if file.exists() else {}  # type: ignore[no-any-return]


def render(folder: Path, messages: list[dict[str, Any]]) -> str:
    try:
        import jinja2

        template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        return environment.from_string(template).render(messages=messages, add_generation_prompt=True)
    except (ImportError, OSError, KeyError):
        return "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)


def scoring_error(draft: dict[str, Any], engine: str, at_least: Any) -> str | None:
    """What the draft's attention makes of the release's query extractor."""
    kind = draft.get("model_type", "llama")
    gemma4 = kind.startswith("gemma4")
    if engine == "vllm-mlx" and at_least("0.3.0"):
        if draft.get("rope_scaling"):
            return "There is no Stream(cpu, 1) in current thread."
        return "'Attention' object has no attribute 'num_heads'"
    if gemma4 and not (engine == "omlx" and at_least("0.3.7.dev1")):
        return "_AttentionCapture.__call__() got an unexpected keyword argument 'shared_kv'"
    if kind in ("qwen3", "qwen3_moe", "gemma3", "gemma3_text") and not (engine == "omlx" and at_least("0.3.7.dev1")):
        return "'Attention' object has no attribute 'num_attention_heads'"
    return None


class VllmMlx(Server):
    """vllm-mlx serve MODEL ..."""

    def parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser("vllm-mlx")
        serve = parser.add_subparsers(required=True).add_parser("serve")
        serve.add_argument("model")
        serve.add_argument("--served-model-name")
        serve.add_argument("--host", default="127.0.0.1")
        serve.add_argument("--port", type=int, default=8000)
        serve.add_argument("--specprefill", action="store_true")
        serve.add_argument("--specprefill-draft-model")
        serve.add_argument("--specprefill-threshold", type=int, default=8192)
        serve.add_argument("--specprefill-keep-pct", type=float, default=0.3)
        if self.at_least("0.4.0"):
            serve.add_argument("--specprefill-backbone-pct", type=float, default=0.0)
        serve.add_argument("--prefill-step-size", type=int, default=2048)
        serve.add_argument("--timeout", type=float, default=300)
        serve.add_argument("--max-tokens", type=int, default=32768)
        for flag in ("enable-metrics", "continuous-batching", "mllm", "enable-mtp", "offline", "disable-prefix-cache"):
            serve.add_argument(f"--{flag}", action="store_true")
        return parser

    def start(self) -> None:
        given = self.arguments
        logging.basicConfig(level=logging.INFO)
        self.model = given.served_model_name or given.model
        self.folder = Path(given.model)
        config = config_of(self.folder)
        by_name = re.search(r"VL-|gemma-3|gemma-4|llava|pixtral", given.model) is not None
        self.mllm = given.mllm or ("vision_config" in config if self.at_least("0.3.0") else by_name)
        self.draft: dict[str, Any] | None = None
        if given.continuous_batching:
            print("Mode: Continuous batching", flush=True)
        else:
            print("Mode: Simple (maximum throughput)", flush=True)
        if given.specprefill and given.specprefill_draft_model and not given.continuous_batching:
            backbone = f", backbone={given.specprefill_backbone_pct:.0%}" if self.at_least("0.4.0") else ""
            print(
                f"SpecPrefill: enabled (draft={given.specprefill_draft_model}, "
                f"threshold={given.specprefill_threshold}, keep={given.specprefill_keep_pct * 100:.0f}%{backbone})",
                flush=True,
            )
            self.load_draft(given)
        active = ", SpecPrefill=active" if self.draft is not None else ""
        if not given.continuous_batching:
            self.log("INFO", f"SimpleEngine loaded: {given.model} (MLLM={self.mllm}{active})")

    def load_draft(self, given: argparse.Namespace) -> None:
        folder = Path(given.specprefill_draft_model)
        if "draft-unloadable" in self.faults or not folder.is_dir():
            self.log("ERROR", f"SpecPrefill: draft model load failed: No such file or directory: {folder}")
            return
        self.draft = config_of(folder)
        self.log(
            "INFO",
            f"SpecPrefill: draft model loaded ({folder}), threshold={given.specprefill_threshold}, "
            f"keep={given.specprefill_keep_pct * 100:.0f}%",
        )

    def log(self, level: str, text: str) -> None:
        logging.getLogger("vllm_mlx.engine.simple").log(getattr(logging, level), text)

    def get(self, handler: "Handler") -> None:
        if handler.path == "/health":
            health = {
                "status": "healthy",
                "model_loaded": True,
                "model_name": self.model,
                "model_type": "mllm" if self.mllm else "llm",
                "mcp": None,
            }
            if self.at_least("0.3.0"):
                batched = self.arguments.continuous_batching
                health |= {"available_models": [self.model], "engine_type": "batched" if batched else "simple"}
            handler.json(200, health)
        elif handler.path == "/v1/models":
            handler.json(200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})
        else:
            handler.json(404, {"detail": "Not Found"})

    def post(self, handler: "Handler", body: dict[str, Any]) -> None:
        if handler.path not in ("/v1/chat/completions", "/v1/completions"):
            handler.json(404, {"detail": "Not Found"})
        elif body.get("model") != self.model:
            what = f"The model `{body.get('model')}` does not exist. Available: {self.model}"
            handler.json(404, {"detail": what})
        else:
            handler.answer(self, body, self.model)

    def generate(self, body: dict[str, Any], usage: dict[str, Any]) -> Iterator[str]:
        """Yields pieces of text as the server sends them; fills `usage` at the end."""
        tokens = self.count(self.folder, body.get("messages") or body.get("prompt") or "")
        wanted, given = body.get("specprefill"), self.arguments
        sparse = self.draft is not None and wanted is not False and not (self.mllm and not self.mllm_text_route())
        if sparse and wanted is not True and tokens <= given.specprefill_threshold:
            sparse = False
        if sparse and tokens > 65536:
            self.log("WARNING", f"SpecPrefill: prompt {tokens} tokens exceeds max 65536, falling back to normal path")
            sparse = False
        usage |= {"prompt_tokens": tokens}
        if sparse and self.sparse(tokens, body):
            words = self.pieces(body, garbled=self.garbled)
            usage["completion_tokens"] = len(words)
            # Nothing is sent before all of it is known.
            self.work(len(words))
            yield from words
            return
        limit = given.timeout
        if tokens * self.options.cost > limit:
            time.sleep(limit)
            self.log("WARNING", f"[disconnect_guard] OUTPUT INACTIVITY TIMEOUT after {limit:.1f}s without a generator")
            return
        self.work(tokens)
        for word in self.pieces(body, garbled=False):
            usage["completion_tokens"] = usage.get("completion_tokens", 0) + 1
            yield word
            self.work(1)

    def mllm_text_route(self) -> bool:
        return self.arguments.enable_mtp or self.at_least("0.3.0")

    @property
    def garbled(self) -> bool:
        compacts = self.at_least("0.3.0") and "scoring-works" in self.faults
        return compacts or "compacted-positions" in self.faults

    def sparse(self, tokens: int, body: dict[str, Any]) -> bool:
        """Score and prefill; False: it failed and fell back."""
        assert self.draft is not None
        failure = None
        if not self.faults & {"scoring-works", "position-map-patched"}:
            failure = scoring_error(self.draft, "vllm-mlx", self.at_least)
        if "scoring-fails" in self.faults:
            failure = "[matmul] Last dimension of first input must match second to last dimension of second input."
        scored = self.work(tokens, 0.25)
        if failure:
            self.log("ERROR", f"SpecPrefill failed, falling back to normal path: {failure}")
            return False
        keep = body.get("specprefill_keep_pct") or self.arguments.specprefill_keep_pct
        if "ignores-request-keep" in self.faults:
            keep = 0.2
        kept = self.kept(tokens, keep)
        filled = self.work(kept)
        if "sparse-prefill-fails" in self.faults:
            self.log(
                "ERROR", "SpecPrefill failed, falling back to normal path: [broadcast_shapes] cannot be broadcast."
            )
            return False
        self.log(
            "INFO",
            f"SpecPrefill: scored {tokens} tokens in {scored:.1f}s, sparse prefill {kept}/{tokens} "
            f"(keep={kept / tokens * 100:.0f}%) in {filled:.1f}s",
        )
        if body.get("max_tokens") == 1:
            old = "Maximum number of tokens must be non-zero"
            new = "cannot access local variable 'token' where it is not associated with a value"
            what = new if self.at_least("0.3.0") else old
            self.log("ERROR", f"SpecPrefill failed, falling back to normal path: {what}")
            return False
        return True


class Omlx(Server):
    """omlx serve ..."""

    def parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser("omlx")
        serve = parser.add_subparsers(required=True).add_parser("serve")
        for flag in ("host", "base-path", "model-dir", "log-level", "api-key", "paged-ssd-cache-dir"):
            serve.add_argument(f"--{flag}")
        if self.at_least("0.3.9.dev1"):
            serve.add_argument("--sse-keepalive-mode", choices=("chunk", "comment", "off"))
        serve.add_argument("--port", type=int)
        serve.add_argument("--no-cache", action="store_true")
        return parser

    def start(self) -> None:
        given = self.arguments
        self.base = Path(given.base_path or Path.home() / ".omlx")
        (self.base / "logs").mkdir(parents=True, exist_ok=True)
        file = self.base / "settings.json"
        self.settings: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        server, auth = self.settings.setdefault("server", {}), self.settings.setdefault("auth", {})
        model = self.settings.setdefault("model", {})
        # Command line before environment before file.
        named = {
            "host": given.host or os.environ.get("OMLX_HOST") or server.get("host", "127.0.0.1"),
            "port": given.port or int(os.environ.get("OMLX_PORT") or server.get("port", 8000)),
            "log_level": given.log_level or os.environ.get("OMLX_LOG_LEVEL") or server.get("log_level", "info"),
        }
        server.update(named)
        given.host, given.port = named["host"], named["port"]
        self.key = given.api_key or os.environ.get("OMLX_API_KEY") or auth.get("api_key")
        folders = given.model_dir or os.environ.get("OMLX_MODEL_DIR") or ",".join(model.get("model_dirs", []))
        self.models = {
            folder.name: folder
            for each in folders.split(",")
            if each
            for folder in sorted(Path(each).iterdir())
            if (folder / "config.json").exists()
        }
        print(f"\033[33moMLX - LLM inference, optimized for your Mac\033[0m\n└─ Version: {self.version}\n", flush=True)
        looks_for_aliases = self.at_least("0.3.9.dev1") and not server.get("server_aliases")
        if given.host_on_command_line or not auth.get("secret_key") or looks_for_aliases:
            # The real server writes what it was told, the key included.
            auth |= {"api_key": self.key, "secret_key": auth.get("secret_key") or secrets.token_hex(32)}
            file.write_text(json.dumps(self.settings, indent=2))
        self.model_settings = self.read_model_settings()
        self.loaded: dict[str, dict[str, Any]] = {}
        self.sessions: set[str] = set()
        self.seen_by_target: set[str] = set()
        self.seen_by_draft: set[str] = set()
        self.lock = threading.Lock()
        self.log_file = (self.base / "logs" / "server.log").open("a", buffering=1)
        cache = "off" if given.no_cache else "on"
        if given.no_cache:
            print("Mode: Multi-model serving (no oMLX cache, mlx-lm BatchGenerator only)", flush=True)
        self.log("INFO", f"Server initialized with {len(self.models)} models", "omlx.server")
        self.log("INFO", f"stand-in cache {cache}", "omlx.server")

    def read_model_settings(self) -> dict[str, dict[str, Any]]:
        file = self.base / "model_settings.json"
        return json.loads(file.read_text()).get("models", {}) if file.exists() else {}  # type: ignore[no-any-return]

    def log(self, level: str, text: str, source: str = "omlx.scheduler") -> None:
        now = time.strftime("%Y-%m-%d %H:%M:%S") + ",000"
        self.log_file.write(f"{now} - {source} - {level} - [-] - {text}\n")
        print(f"{now} - {source} - {level} - {text}", file=sys.stderr, flush=True)

    def get(self, handler: "Handler") -> None:
        if handler.path == "/health":
            pool = {"model_count": len(self.models), "loaded_count": len(self.loaded)}
            first = next(iter(self.models), None)
            handler.json(200, {"status": "healthy", "default_model": first, "engine_pool": pool, "mcp": None})
        elif handler.path in ("/v1/models/status", "/v1/models", "/api/status"):
            if not self.authorised(handler):
                return
            if handler.path == "/api/status":
                handler.json(200, {"status": "ok", "version": self.version, "loaded_models": list(self.loaded)})
                return
            models = [
                {
                    "id": name,
                    "model_path": str(folder),
                    "loaded": name in self.loaded,
                    "is_loading": False,
                    "pinned": False,
                    "engine_type": self.engine_type(folder),
                    "model_type": "vlm" if self.engine_type(folder) == "vlm" else "llm",
                    "config_model_type": config_of(folder).get("model_type"),
                }
                for name, folder in self.models.items()
            ]
            handler.json(200, {"model_count": len(models), "models": models})
        elif handler.path == "/admin/api/models":
            if self.admitted(handler):
                settings = [{"id": name, "settings": self.model_settings.get(name, {})} for name in self.models]
                handler.json(200, {"models": settings})
        else:
            handler.json(404, {"detail": "Not Found"})

    def authorised(self, handler: "Handler") -> bool:
        given = handler.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.key is None or secrets.compare_digest(given, self.key):
            return True
        if given:
            self.log("WARNING", f"Rejected API key: {given!r}", "omlx.server")
        handler.json(401, {"error": {"message": "Invalid API key" if given else "API key required"}})
        return False

    def admitted(self, handler: "Handler", bearer: bool = False) -> bool:
        cookie = re.search(r"omlx_admin_session=([0-9a-f]+)", handler.headers.get("Cookie", ""))
        if cookie and cookie[1] in self.sessions:
            return True
        token = handler.headers.get("Authorization", "").removeprefix("Bearer ")
        if bearer and self.key and secrets.compare_digest(token, self.key):
            return True
        handler.json(401, {"detail": "Admin authentication required"})
        return False

    def engine_type(self, folder: Path) -> str:
        config = config_of(folder)
        vision = config.get("model_type") in ("qwen3_5_moe", "gemma3", "gemma4") and "vision_config" in config
        return "vlm" if vision else "batched"

    def post(self, handler: "Handler", body: dict[str, Any]) -> None:
        load = re.fullmatch(r"/(v1|admin/api)/models/([^/]+)/(load|unload)", handler.path)
        if handler.path == "/admin/api/login":
            if not self.key:
                handler.json(400, {"detail": "No API key configured. Please set up an API key first."})
            elif not secrets.compare_digest(str(body.get("api_key")), self.key):
                handler.json(401, {"detail": "Invalid API key"})
            else:
                session = secrets.token_hex(16)
                self.sessions.add(session)
                cookie = f"omlx_admin_session={session}; HttpOnly; Max-Age=86400; Path=/; SameSite=lax"
                handler.json(200, {"success": True}, {"Set-Cookie": cookie})
        elif load:
            route, model, action = load.groups()
            if route == "v1" and action == "load" and not self.at_least("0.3.9.dev1"):
                handler.json(404, {"detail": "Not Found"})
            elif self.admitted(handler, self.at_least("0.3.9.dev1")) if route != "v1" else self.authorised(handler):
                self.load(handler, model, action)
        elif handler.path in ("/v1/chat/completions", "/v1/completions"):
            if self.authorised(handler):
                if body.get("model") not in self.models:
                    handler.json(404, {"error": {"message": f"Model '{body.get('model')}' not found"}})
                    return
                handler.answer(self, body, body["model"])
        else:
            handler.json(404, {"detail": "Not Found"})

    def load(self, handler: "Handler", model: str, action: str) -> None:
        if model not in self.models:
            handler.json(404, {"detail": f"Model not found: {model}"})
        elif action == "unload":
            self.loaded.pop(model, None)
            handler.json(200, {"status": "ok", "model_id": model})
        elif "model-load-fails" in self.faults:
            handler.json(500, {"detail": "Received 1 parameters not in model: model.layers.0.extra."})
        else:
            self.load_model(model)
            handler.json(200, {"status": "ok", "model_id": model, "message": f"Loaded {model}"})

    def load_model(self, model: str) -> None:
        if model in self.loaded:
            return
        settings = {} if "stale-settings" in self.faults else dict(self.model_settings.get(model, {}))
        state: dict[str, Any] = {"settings": settings, "draft": None, "dflash": False}
        self.log("INFO", f"Loading model: {model}", "omlx.engine_pool")
        draft = settings.get("specprefill_draft_model")
        if "dflash" in self.faults or (settings.get("dflash_enabled") and settings.get("dflash_draft_model")):
            self.log("INFO", f"DFlash enabled for {model}, draft={draft}", "omlx.engine_pool")
            state["dflash"] = True
        elif settings.get("specprefill_enabled") and draft:
            if "draft-unloadable" in self.faults or not Path(draft).is_dir():
                self.log("ERROR", f"SpecPrefill: draft model load failed: {draft} not found", "omlx.engine.batched")
            else:
                state["draft"] = config_of(draft)
                how = "(no SSD cache)" if self.arguments.no_cache else f"with SSD cache (model_name={draft})"
                self.log("INFO", f"SpecPrefill: draft model set {how}")
                self.log("INFO", f"SpecPrefill: draft model loaded ({draft})", "omlx.engine.batched")
        if not state["dflash"]:
            self.log("INFO", f"BatchedEngine loaded: {self.models[model]}", "omlx.engine.batched")
        self.log("INFO", f"Loaded model: {model} (estimated: 1.00GB, total: 1.00GB)", "omlx.engine_pool")
        self.loaded[model] = state

    def generate(self, body: dict[str, Any], usage: dict[str, Any]) -> Iterator[str]:
        """Yields pieces of text as the server sends them; fills `usage` at the end."""
        started = time.perf_counter()
        with self.lock:
            self.load_model(body["model"])
            state, folder = self.loaded[body["model"]], self.models[body["model"]]
            messages = body.get("messages")
            tokens = self.count(folder, messages or body.get("prompt") or "")
            forwards = messages is not None and (body.get("stream") or self.at_least("0.5.2"))
            cached = self.cached(body, tokens)
            sparse = self.sparse(body, state, folder, tokens, cached, forwards)
            if not sparse:
                self.work(tokens - cached)
            usage |= {"prompt_tokens": tokens, "_cached": cached}
            first = time.perf_counter() - started
            words = self.pieces(body, garbled=sparse and "compacted-positions" in self.faults)
            for word in words:
                yield word
                self.work(1)
            total = time.perf_counter() - started
        usage |= self.timing(tokens, len(words), first, total) if body.get("stream") else {}
        usage["completion_tokens"] = len(words)

    def cached(self, body: dict[str, Any], tokens: int) -> int:
        if "target-cached" in self.faults:
            return tokens - 40 if tokens > 40 else 0
        if self.arguments.no_cache:
            return 0
        identity = hashlib.sha256(json.dumps(body.get("messages") or body.get("prompt")).encode()).hexdigest()
        if identity in self.seen_by_target:
            return (tokens - 1) // 256 * 256
        self.seen_by_target.add(identity)
        return 0

    def sparse(
        self, body: dict[str, Any], state: dict[str, Any], folder: Path, tokens: int, cached: int, forwards: bool
    ) -> bool:
        if state["draft"] is None or state["dflash"] or "media" in self.faults or body.get("specprefill") is False:
            return False
        settings = state["settings"]
        keep, threshold = 0.2, 8192
        if forwards:
            keep = body.get("specprefill_keep_pct") or settings.get("specprefill_keep_pct") or keep
            drops = self.engine_type(folder) == "vlm" and not self.at_least("0.3.5.dev2")
            if not drops:
                threshold = body.get("specprefill_threshold") or settings.get("specprefill_threshold") or threshold
        if "ignores-request-keep" in self.faults:
            keep = 0.2
        if tokens - cached <= threshold:
            return False
        system = self.system_tokens(body, folder, tokens)
        scored = tokens - cached - system
        if scored <= threshold:
            return False
        failure = scoring_error(state["draft"], "omlx", self.at_least)
        if "scoring-fails" in self.faults:
            failure = "[matmul] Last dimension of first input must match second to last dimension of second input."
        hit = self.draft_cached(body, scored)
        score_seconds = self.work(scored - hit, 0.25)
        if failure:
            self.log("ERROR", f"SpecPrefill scoring failed, falling back to normal path: {failure}")
            return False
        tail = 512 if self.at_least("0.5.3") else 0
        kept = self.kept(scored, keep, tail)
        extra = f"draft cache hit {hit}, " if hit else ""
        self.log(
            "INFO",
            f"SpecPrefill: scored {scored} tokens in {score_seconds:.1f}s, selected {kept}/{scored} "
            f"(keep={kept / scored * 100:.0f}%, {extra}prompt {tokens} = system {system} + conv {tokens - system}, "
            f"cached {cached})",
        )
        if system:
            self.work(system)
            self.log("INFO", f"SpecPrefill: system prompt {system} tokens full prefill")
        if "sparse-prefill-fails" in self.faults:
            self.log("ERROR", "SpecPrefill sparse prefill failed: [broadcast_shapes] cannot be broadcast.")
            return False
        filled = self.work(kept)
        self.log(
            "INFO",
            f"SpecPrefill: sparse prefill {kept - 1}/{scored} conv tokens in {filled:.1f}s (total {tokens}, "
            f"cached {cached}, system {system} full, conv {scored} sparse)",
        )
        return True

    def system_tokens(self, body: dict[str, Any], folder: Path, tokens: int) -> int:
        messages = body.get("messages") or []
        rest = [message for message in messages if message.get("role") != "system"]
        return tokens - self.count(folder, rest) if len(rest) < len(messages) else 0

    def draft_cached(self, body: dict[str, Any], scored: int) -> int:
        if "draft-cached" in self.faults:
            return scored // 256 * 256
        if self.arguments.no_cache:
            return 0
        identity = hashlib.sha256(json.dumps(body.get("messages")).encode()).hexdigest()
        known = identity in self.seen_by_draft
        self.seen_by_draft.add(identity)
        return scored // 256 * 256 if known else 0

    def timing(self, tokens: int, words: int, first: float, total: float) -> dict[str, Any]:
        """Three of these fields are one measurement."""
        return {
            "input_tokens": tokens,
            "output_tokens": words,
            "time_to_first_token": round(first, 2),
            "total_time": round(total, 2),
            "prompt_eval_duration": round(first, 2),
            "generation_duration": round(total - first, 2),
            "prompt_tokens_per_second": round(tokens / first, 2) if first > 0 else None,
            "generation_tokens_per_second": round(words / max(total - first, 1e-6), 2),
        }


class Handler(BaseHTTPRequestHandler):
    """HTTP/1.1 with chunked streams, as uvicorn sends them."""

    protocol_version = "HTTP/1.1"
    server: "Listener"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/health" and "unhealthy" in self.server.stand_in.faults:
            self.json(503, {"status": "unhealthy"})
            return
        self.server.stand_in.get(self)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(raw or b"{}")
        except ValueError:
            self.json(422, {"detail": "not JSON"})
            return
        self.server.stand_in.post(self, body)

    def json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(content)

    def answer(self, server: Any, body: dict[str, Any], model: str) -> None:
        faults, options = server.faults, server.options
        if "key-in-log" in faults:
            server.log("INFO", f"Authorization: {self.headers.get('Authorization')}", "omlx.server")
        if "floods-log" in faults:
            line = "x" * 1023
            for _ in range(options.flood_mb * 1024):
                print(line, file=sys.stderr)
        if "refuses" in faults:
            self.json(400, {"error": {"message": "Prompt too long: the prefill would exceed the memory limit."}})
            return
        name = "another-model" if "other-model" in faults else model
        chat = self.path.endswith("/chat/completions")
        if not body.get("stream"):
            usage: dict[str, Any] = {}
            text = "".join(server.generate(body, usage))
            self.json(200, self.whole(server, name, chat, text, self.totals(server, usage), body))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            self.stream(server, body, name, chat)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def stream(self, server: Any, body: dict[str, Any], name: str, chat: bool) -> None:
        faults = server.faults
        if server.name == "omlx" and server.at_least("0.3.9.dev1") and self.keepalives(server):
            self.event({"id": "chatcmpl-keepalive", "model": "keepalive", "choices": [{"delta": {"content": ""}}]})
        if chat:
            self.event(self.chunk(name, chat, {"role": "assistant"}))
        if "hangs" in faults:
            time.sleep(3600)
        if "error-event" in faults:
            self.event(
                {"error": {"message": "Request aborted: process memory limit exceeded.", "type": "server_error"}}
            )
            self.chunked(b"data: [DONE]\n\n")
            self.chunked(b"")
            return
        usage: dict[str, Any] = {}
        stop = threading.Event()
        if "heartbeats" in faults:
            threading.Thread(target=self.beat, args=(stop,), daemon=True).start()
        sent = 0
        for text in server.generate(body, usage):
            stop.set()
            if "no-content" in faults:
                continue
            if "half-event" in faults:
                event = json.dumps(self.chunk(name, chat, {"content": text}))
                self.chunked(f"data: {event[: len(event) // 2]}".encode())
                self.wfile.flush()
                self.close_connection = True
                self.connection.shutdown(2)
                return
            if "not-json" in faults:
                self.chunked(b"data: {'content': no json}\n\n")
            self.event(self.chunk(name, chat, {"content": text}))
            sent += 1
            if "dies-mid-answer" in faults:
                self.wfile.flush()
                os._exit(137)
            if "dies-slowly" in faults:
                self.connection.shutdown(2)
                time.sleep(0.5)
                os._exit(137)
        stop.set()
        if "no-finish" in faults:
            self.chunked(b"")
            return
        limit = (body.get("max_tokens") or 16) <= sent
        final = self.chunk(name, chat, {})
        final["choices"][0]["finish_reason"] = "length" if limit else "stop"
        self.event(final)
        if (body.get("stream_options") or {}).get("include_usage") and "no-usage" not in faults:
            last = self.chunk(name, chat, {})
            self.event({**last, "choices": [], "usage": self.totals(server, usage)})
        self.chunked(b"data: [DONE]\n\n")
        self.chunked(b"")

    def keepalives(self, server: Any) -> bool:
        flag = getattr(server.arguments, "sse_keepalive_mode", None)
        return (flag or server.settings["server"].get("sse_keepalive_mode", "chunk")) == "chunk"

    def beat(self, stop: threading.Event) -> None:
        while not stop.wait(0.005):
            self.chunked(b": heartbeat\n\n")

    def totals(self, server: Any, usage: dict[str, Any]) -> dict[str, Any]:
        cached = usage.pop("_cached", 0)
        if "cached-tokens" in server.faults:
            cached = 512
        usage.setdefault("completion_tokens", 0)
        if "wrong-count" in server.faults:
            usage["prompt_tokens"] += 1
        usage["total_tokens"] = usage.get("prompt_tokens", 0) + usage["completion_tokens"]
        if server.name == "omlx" and server.at_least("0.3.9.dev1"):
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        elif server.name == "omlx" and cached:
            usage["cached_tokens"] = cached
        return usage

    def chunk(self, model: str, chat: bool, delta: dict[str, Any]) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta} if chat else {"index": 0, "text": delta.get("content", "")}
        kind = "chat.completion.chunk" if chat else "text_completion"
        return {"id": "chatcmpl-5a1e0000", "object": kind, "created": 0, "model": model, "choices": [choice]}

    def whole(
        self, server: Any, model: str, chat: bool, text: str, usage: dict[str, Any], body: dict[str, Any]
    ) -> dict[str, Any]:
        message = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        return {"model": model, "choices": [{"index": 0, **message, "finish_reason": "stop"}], "usage": usage}

    def event(self, value: Any) -> None:
        self.chunked(f"data: {json.dumps(value)}\n\n".encode())

    def chunked(self, content: bytes) -> None:
        with self.server.writing:
            self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
            self.wfile.flush()


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], stand_in: Any) -> None:
        self.stand_in = stand_in
        self.writing = threading.Lock()
        super().__init__(address, Handler)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--as", dest="role", default="vllm-mlx==0.2.9", help="NAME==VERSION")
    parser.add_argument("--fault", action="append", default=[], choices=sorted(FAULTS))
    parser.add_argument("--answer", default="The secret number is 4821.")
    parser.add_argument("--cost", type=float, default=2e-5, help="seconds a token of prefill takes")
    parser.add_argument("--prompt-tokens", type=int, help="report this many, whatever the prompt")
    parser.add_argument("--flood-mb", type=int, default=100)
    parser.add_argument("--version", action="store_true")
    own: list[str] = sys.argv[1:]
    rest: list[str] = []
    if "serve" in own:
        own, rest = own[: own.index("serve")], own[own.index("serve") :]
    options = parser.parse_args(own)
    name, _, version = options.role.partition("==")
    if options.version:
        print(f"{name} {version}")
        return
    faults = set(options.fault)
    if "ignores-sigterm" in faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if faults & {"leaves-child", "leaves-detached-child"}:
        detached = "leaves-detached-child" in faults
        sleeper = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(3600)"]
        subprocess.Popen(sleeper, start_new_session=detached)
    server = (VllmMlx if name == "vllm-mlx" else Omlx)(options, name, version, rest)
    server.arguments.host_on_command_line = any(flag in rest for flag in ("--host", "--port", "--model-dir"))
    if "crashes-at-start" in faults:
        raise ImportError("Library not loaded: @rpath/libmlx.dylib")
    server.start()
    if "never-ready" in faults:
        time.sleep(3600)
    try:
        listener = Listener((server.arguments.host, server.arguments.port), server)
    except OSError as error:
        address = (server.arguments.host, server.arguments.port)
        print(f"ERROR:    [Errno {error.errno}] error while attempting to bind on address {address}", file=sys.stderr)
        raise SystemExit(1) from None
    print(f"INFO:     Uvicorn running on http://{address_of(listener)}", file=sys.stderr, flush=True)
    listener.serve_forever(poll_interval=0.05)


def address_of(listener: Listener) -> str:
    return f"{listener.server_address[0]!s}:{listener.server_address[1]}"


if __name__ == "__main__":
    main()
