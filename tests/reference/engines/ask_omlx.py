"""Ask a real oMLX in every way, and write what it logged and answered: omlx-VERSION.json in this folder.

    python tests/reference/engines/ask_omlx.py CHECKOUT PYTHON

CHECKOUT: a checkout of oMLX; PYTHON: an interpreter with what it needs (docs/engines.md). The models are tiny ones with
random weights: target and draft of the Llama family, and a draft of the Qwen 3 family, which some versions can't score.
"""

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))

from specprefill_repro.engines import omlx  # noqa: E402
from specprefill_repro.engines.server import Server, free_port, running_server, server_environment  # noqa: E402
from specprefill_repro.engines.server_trial import Start  # noqa: E402
from specprefill_repro.project import Project  # noqa: E402
from specprefill_repro.prompts.tokenizer import load_tokenizer  # noqa: E402
from specprefill_repro.study.engines import OmlxEngine  # noqa: E402
from specprefill_repro.study.plan import Arm, ArmKind  # noqa: E402
from specprefill_repro.trials.job import Job  # noqa: E402
from tiny_model import write_tiny_model  # noqa: E402

TOKENS, KEEP, THRESHOLD = 600, 0.3, 128
KEPT = re.compile(r"SpecPrefill|DFlash|Engine loaded|cache disabled|Version:|Loaded model:|completion|Completion")


def main(checkout: str, python: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target = write_tiny_model(folder / "target", seed=1, layers=4)
        draft = write_tiny_model(folder / "draft", seed=2)
        qwen = as_qwen3(write_tiny_model(folder / "qwen3-draft", seed=3))
        tokenizer = load_tokenizer(target)
        text, number = "What is the secret number?", 0
        while len(tokenizer.encode(tokenizer.render(text)).ids) < TOKENS:
            text, number = f"Line {number}: the harbour was quiet. {text}", number + 1
        ids = tuple(tokenizer.encode(tokenizer.render(text)).ids)
        engine = omlx.Omlx(
            Project(ROOT), OmlxEngine(kind="omlx", checkout=checkout, python=python, threshold=THRESHOLD)
        )
        ways: dict[str, Any] = {}
        chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 3, "temperature": 0}
        stream = {**chat, "stream": True, "stream_options": {"include_usage": True}}
        with serving(engine, target, draft, ids, text) as (server, start, log):
            version = re.search(r"Version: (\S+?)(?:\x1b|$)", log, re.MULTILINE)
            found: dict[str, Any] = {"version": version[1] if version else None, "prompt_tokens": len(ids)}
            found["started"] = lines(log)
            ways["streaming chat"] = ask(server, start, stream)
            ways["chat without streaming"] = ask(server, start, chat)
            ways["completions"] = ask(server, start, {"prompt": text, "max_tokens": 3, "stream": True}, "completions")
            ways["threshold of the request"] = ask(server, start, {**stream, "specprefill_threshold": 100_000})
            ways["switched off by the request"] = ask(server, start, {**stream, "specprefill": False})
            ways["keep rate of the request"] = ask(server, start, {**stream, "specprefill_keep_pct": 0.5})
            ways["one token"] = ask(server, start, {**stream, "max_tokens": 1})
            system = [{"role": "system", "content": "Answer in one word, and in no other way."}, *chat["messages"]]
            ways["system prompt"] = ask(server, start, {**stream, "messages": system})
        with serving(engine, target, folder / "nothing", ids, text) as (server, start, log):
            ways["draft missing"] = {"started": lines(log), **ask(server, start, stream)}
        with serving(engine, target, qwen, ids, text) as (server, start, log):
            ways["Qwen 3 draft"] = ask(server, start, stream)
        with serving(engine, target, draft, ids, text, cache=True) as (server, start, log):
            ways["with caches"] = {"started": lines(log), **ask(server, start, stream)}
            ways["with caches, again"] = ask(server, start, stream)
            ways["with caches, dense"] = ask(server, start, {**stream, "specprefill": False})
            ways["with caches, after dense"] = ask(server, start, stream)
        found["ways"] = ways
        content = json.dumps(found, indent=1, ensure_ascii=False).replace(name, "[models]")
        (Path(__file__).parent / f"omlx-{found['version']}.json").write_text(content + "\n")


def as_qwen3(folder: Path) -> Path:
    """Give a tiny Llama norms of queries and keys, and call it Qwen 3."""
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    for layer in range(config["num_hidden_layers"]):
        for name in ("q_norm", "k_norm"):
            weights[f"model.layers.{layer}.self_attn.{name}.weight"] = np.ones(config["head_dim"], np.float16)
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "qwen3"}))
    return folder


@contextmanager
def serving(
    engine: omlx.Omlx, target: Path, draft: Path, ids: tuple[int, ...], text: str, cache: bool = False
) -> Iterator[tuple[Server, Start, str]]:
    """A server with the model loaded, and what it has printed so far."""
    known = draft.exists()
    job = Job(
        target_folder=str(target),
        draft_folder=str(draft if known else target),
        arm=Arm(kind=ArmKind.SPECULATIVE, keep=KEEP),
        ids=ids,
        needle_tokens=(1, 2),
        warmup_ids=(),
        step=2048,
        answer_tokens=3,
        seed="1/cell/prompt",
        logits_file="",
        text=text,
    )
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        start = engine.prepare(job, folder, port)
        settings = folder / "base" / "model_settings.json"
        if not known:
            settings.write_text(settings.read_text().replace(str(target), str(draft)))
        command = tuple(word for word in start.command if not (cache and word == "--no-cache"))
        if cache:
            file = folder / "base" / "settings.json"
            file.write_text(json.dumps({**json.loads(file.read_text()), "cache": {"enabled": True}}))
        environment = {**server_environment(folder), **start.environment}
        with running_server(command, environment, folder, port, engine.limits) as server:
            server.wait_until_ready()
            engine.load(server, start)
            log = server.log(0, server.mark())
            yield server, start, log.replace(name, "[home]").replace(start.model, "target")


def ask(server: Server, start: Start, body: dict[str, Any], address: str = "chat/completions") -> dict[str, Any]:
    begin = server.mark()
    status, said, _ = omlx._call(server.port, f"/v1/{address}", {"model": start.model, **body}, start.headers, 600)
    log = server.log(begin, server.mark())
    events = [json.loads(line[6:]) for line in said.splitlines() if line.startswith("data: {")] or [json.loads(said)]
    usage = next((event["usage"] for event in events if event.get("usage")), None)
    return {"status": status, "log": lines(log.replace(start.model, "target")), "usage": usage, "events": len(events)}


def lines(log: str) -> list[str]:
    """Those that matter, without the time."""
    plain = re.sub(r"\x1b\[\d+m", "", log)
    return [re.sub(r"^[\d-]+ [\d:,]+ - ", "", line).strip() for line in plain.splitlines() if KEPT.search(line)]


if __name__ == "__main__":
    main(*sys.argv[1:])
