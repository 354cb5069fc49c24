"""Ask a real vllm-mlx in every way that matters, and write what it logged and answered: vllm-mlx-VERSION.json here.

    python tests/reference/engines/ask_vllm_mlx.py VERSION [WAY ...]

VERSION has a lock file in envs/; its environment is installed in results/environments. The models are tiny ones with
random weights: target and draft of the Llama family, and a draft of the Qwen 3 family. Where ways are named, only those
are asked anew.
"""

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).resolve().parent)]

from ask_omlx import as_qwen3  # noqa: E402

from specprefill_repro.engines.chat import ChatAnswer  # noqa: E402
from specprefill_repro.engines.history import load_history  # noqa: E402
from specprefill_repro.engines.server_evidence import LogClaims  # noqa: E402
from specprefill_repro.engines.server_log import cleaned  # noqa: E402
from specprefill_repro.engines.server_trial import Start, measure_on_server  # noqa: E402
from specprefill_repro.engines.vllm_mlx import VllmMlx  # noqa: E402
from specprefill_repro.errors import ReproError  # noqa: E402
from specprefill_repro.project import Project  # noqa: E402
from specprefill_repro.prompts.tokenizer import load_tokenizer  # noqa: E402
from specprefill_repro.study.plan import Arm, ArmKind  # noqa: E402
from specprefill_repro.trials.job import Job  # noqa: E402
from tiny_model import write_tiny_model  # noqa: E402

TOKENS, KEEP, THRESHOLD = 600, 0.3, 128
WORDS = ("SpecPrefill", "Engine loaded", "INACTIVITY", "Mode:", "continuous batching", "KV cache")


@dataclasses.dataclass(frozen=True)
class Asked(VllmMlx):
    """The engine, with flags taken out of its command or added to it; notes what it reads."""

    drop: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    seen: dict[str, Any] = dataclasses.field(default_factory=dict)

    def prepare(self, job: Job, folder: Path, port: int) -> Start:
        start = super().prepare(job, folder, port)
        command = list(start.command)
        for flag in self.drop:
            place = command.index(flag)
            del command[place : place + 2]
        return dataclasses.replace(start, command=(*command, *self.add))

    def read_log(self, job: Job, started: str, request: str) -> LogClaims:
        self.seen.update(started=started, request=request)
        return super().read_log(job, started, request)

    def cached_tokens(self, answer: ChatAnswer) -> int | None:
        self.seen["usage"] = answer.usage
        return super().cached_tokens(answer)


def main(version: str, *only: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target = write_tiny_model(folder / "target", seed=1, layers=4)
        draft = write_tiny_model(folder / "draft", seed=2)
        broken = write_tiny_model(folder / "broken-draft", seed=2)
        (broken / "model.safetensors").unlink()
        qwen = as_qwen3(write_tiny_model(folder / "qwen3-draft", seed=3))
        tokenizer = load_tokenizer(target)
        text, number = "What is the secret number?", 0
        while len(tokenizer.encode(tokenizer.render(text)).ids) < TOKENS:
            text, number = f"Line {number}: the harbour was quiet. {text}", number + 1
        ids = tuple(tokenizer.encode(tokenizer.render(text)).ids)

        def ask(draft: Path | None, threshold: int = THRESHOLD, **changes: Any) -> dict[str, Any]:
            project = Project(ROOT)
            engine = Asked(project, load_history(project.config), version, threshold, **changes)
            job = Job(
                target_folder=str(target),
                draft_folder=None if draft is None else str(draft),
                arm=Arm(kind=ArmKind.SPECULATIVE, keep=KEEP) if draft else Arm(kind=ArmKind.DENSE),
                ids=ids,
                needle_tokens=(0, 1),
                warmup_ids=(),
                step=256,
                answer_tokens=engine.timed_tokens or 2,
                seed="7",
                logits_file="",
                log_file=str(folder / "log.gz"),
                text=text,
            )
            try:
                measure_on_server(engine, job, None)
            except ReproError as error:
                return {"error": cleaned(error.what, {str(folder): "[models]"})}
            seen, private = engine.seen, {str(folder): "[models]", str(ROOT): "[project]"}
            return {
                "started": [line for line in cleaned(seen["started"], private).splitlines() if _matters(line)],
                "request": [line for line in cleaned(seen["request"], private).splitlines() if _matters(line)],
                "usage": seen["usage"],
            }

        ways: dict[str, dict[str, Any]] = {
            "as the engine asks": {},
            "dense": {"draft": None},
            "one token": {"timed_tokens": 1},
            # This engine holds back bytes that are no text yet; random weights make many of them.
            "continuous batching": {"add": ("--continuous-batching",), "timed_tokens": 64},
            "threshold not below the prompt": {"threshold": len(ids)},
            "draft that can't be loaded": {"draft": broken},
            "no draft named": {"drop": ("--specprefill-draft-model",)},
            "draft of Qwen 3": {"draft": qwen},
        }
        file = Path(__file__).parent / f"vllm-mlx-{version}.json"
        known = json.loads(file.read_text())["ways"] if file.exists() else {}
        found = {
            "version": version,
            "prompt_tokens": len(ids),
            "keep": KEEP,
            "threshold": THRESHOLD,
            "ways": {
                way: ask(**{"draft": draft, **changes}) if not only or way in only else known[way]
                for way, changes in ways.items()
            },
        }
        file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def _matters(line: str) -> bool:
    return any(word in line for word in WORDS)


if __name__ == "__main__":
    main(sys.argv[1], *sys.argv[2:])
