"""The engine vllm-mlx, with the stand-in in the server's place: everything else is the real thing."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from specprefill_repro.engines import vllm_mlx
from specprefill_repro.engines.environments import EnvironmentReceipt
from specprefill_repro.engines.history import load_history
from specprefill_repro.engines.server import Limits
from specprefill_repro.engines.server_trial import Start, measure_on_server
from specprefill_repro.engines.vllm_mlx import VllmMlx
from specprefill_repro.project import Project
from specprefill_repro.study.plan import Arm, ArmKind
from specprefill_repro.trials.job import Job, Measurement
from tiny_model import write_tiny_tokenizer

TESTS = Path(__file__).resolve().parent
PROJECT = Project(TESTS.parent)
PROMPT = 599
QUICK = Limits(ready=20.0, answer=20.0, stop=5.0, log_bytes=2_000_000)
LLAMA = {"model_type": "llama", "max_position_embeddings": 8192}


@dataclasses.dataclass(frozen=True)
class StandIn(VllmMlx):
    """Starts the stand-in with the arguments that the real server would get."""

    faults: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    """Flags, with their values, that are taken out of the command."""
    add: tuple[str, ...] = ()
    """Arguments that are added to it."""
    own: tuple[str, ...] = ("--prompt-tokens", str(PROMPT))
    """Arguments of the stand-in itself."""

    def prepare(self, job: Job, folder: Path, port: int) -> Start:
        start = super().prepare(job, folder, port)
        arguments = list(start.command[3:])
        for flag in self.drop:
            place = arguments.index(flag)
            del arguments[place : place + 2]
        faults = [word for fault in self.faults for word in ("--fault", fault)]
        version = ("--as", f"vllm-mlx=={self.version}")
        command = (sys.executable, str(TESTS / "stand_in_server.py"), *version, *faults, *self.own, *arguments)
        return dataclasses.replace(start, command=(*command, *self.add), environment={})


def stand_in(version: str, **changes: Any) -> StandIn:
    threshold = changes.pop("threshold", 1)
    return StandIn(PROJECT, load_history(PROJECT.config), version, threshold, **changes)


def installed(monkeypatch: Any) -> None:
    """Pretend that every environment is installed."""

    def receipt(project: Project, kind: str, name: str) -> EnvironmentReceipt:
        return EnvironmentReceipt(name=name, lock_sha256="0" * 64, versions={kind: name.removeprefix(f"{kind}-")})

    monkeypatch.setattr(vllm_mlx, "install_environment", receipt)


def write_model(folder: Path, config: dict[str, Any] | None = None, **tokenizer: Any) -> str:
    """What the server's side needs of a model: its config and its tokenizer."""
    folder.mkdir(parents=True)
    write_tiny_tokenizer(folder, **tokenizer)
    (folder / "config.json").write_text(json.dumps(config or LLAMA))
    return str(folder)


def make_job(folder: Path, target: str, draft: str | None, **changes: Any) -> Job:
    """A trial of 599 tokens, speculative where there is a draft."""
    arm = Arm(kind=ArmKind.DENSE) if draft is None else Arm(kind=ArmKind.SPECULATIVE, keep=0.3)
    values: dict[str, Any] = {
        "target_folder": target,
        "draft_folder": draft,
        "arm": arm,
        "ids": tuple(range(PROMPT)),
        "needle_tokens": ((100, 110),),
        "warmup_ids": (),
        "step": 256,
        "answer_tokens": 2,
        "seed": "7/cell/prompt",
        "logits_file": str(folder / "none.f32"),
        "log_file": str(folder / "server.log.gz"),
        "text": "Where is the treasure?",
    }
    return Job(**{**values, **changes})


def measured(engine: StandIn, job: Job, limits: Limits = QUICK) -> Measurement:
    return measure_on_server(engine, job, None, limits)
