"""The server vllm-mlx: 0.2.9 is the implementation that the claims about Apple silicon come from.

What its log says is in engines/server_evidence.py's terms; what each version gets wrong is in docs/engines.md.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specprefill_repro.engines.chat import ChatAnswer
from specprefill_repro.engines.environments import install_environment, require_lock
from specprefill_repro.engines.history import EngineHistory, load_history, release_key
from specprefill_repro.engines.known_faults import faults_fingerprint, known_faults, refuse_other_tokenizer
from specprefill_repro.engines.server import HOST, Server
from specprefill_repro.engines.server_evidence import CHUNK, LogClaims, Scored, kept_bounds
from specprefill_repro.engines.server_log import cleaned
from specprefill_repro.engines.server_trial import Start, folder_names, measure_on_server, new_secret
from specprefill_repro.files import content_id, sha256_file
from specprefill_repro.prefill.blas import STOCK, preloaded_blas
from specprefill_repro.project import Project
from specprefill_repro.study.engines import VllmMlxEngine
from specprefill_repro.study.plan import ArmKind
from specprefill_repro.trials.job import Job, Measurement

KIND = "vllm-mlx"
SECONDS = 7200
"""`--timeout`; its own default of 300 s also ends a stream that is silent that long, as a long prefill is."""

ARMED = re.compile(r"SpecPrefill: draft model loaded \(.*\), threshold=(\d+), keep=(\d+)%")
LOADED = re.compile(r"(?:Simple|Batched)Engine loaded: .*\((?:MLLM|mllm)=(True|False)")
SCORED = re.compile(
    r"SpecPrefill: scored (\d+) tokens in ([\d.]+)s, sparse prefill (\d+)/(\d+) \(.*?keep=([\d.]+)%.*?\) in ([\d.]+)s"
)
FAILED = re.compile(
    r"SpecPrefill failed.*|SpecPrefill: prompt \d+ tokens exceeds max.*|SpecPrefill: draft model load failed.*"
)
SILENT = re.compile(r".*OUTPUT INACTIVITY TIMEOUT.*")


@dataclass(frozen=True)
class VllmMlx:
    project: Project
    history: EngineHistory
    version: str
    threshold: int
    timed_tokens: int | None = 2
    """An answer with SpecPrefill is sent when it is whole. Not 1: asked for one token, the server has none left to
    generate after the prefill, takes that for an error, and reads the whole prompt again."""
    name: str = KIND
    needs_machine: bool = True

    @property
    def environment(self) -> str:
        return f"{KIND}-{self.version}"

    def code(self, arms: Iterable[ArmKind]) -> tuple[str, ...]:
        return (__name__,)

    def settings(self) -> Mapping[str, str]:
        lock = require_lock(self.project, KIND, self.environment)
        return {
            "engine environment": sha256_file(lock),
            "engine settings": content_id([self.version, self.threshold]),
            "engine faults": faults_fingerprint(self.history, KIND, self.version),
        }

    def measure(self, job: Job, lease: int | None) -> Measurement:
        return measure_on_server(self, job, lease)

    def prepare(self, job: Job, folder: Path, port: int) -> Start:
        if job.draft_folder:
            refuse_other_tokenizer(KIND, {"target": job.target_folder, "draft": job.draft_folder})
        # Installed by the study's own rule before; this only checks that it is still there.
        versions = install_environment(self.project, KIND, self.environment).versions
        environment = self.project.engine_environment(self.environment)
        preload, blas = preloaded_blas(folder)
        model = f"target-{new_secret()}"
        options = self._options(job)
        return Start(
            command=(
                str(environment / "bin" / "python"),
                "-m",
                "vllm_mlx.cli",
                "serve",
                job.target_folder,
                *("--served-model-name", model),
                *("--host", HOST, "--port", str(port)),
                *options,
            ),
            model=model,
            environment=preload,
            private={str(environment): "[environment]", str(self.project.root): "[project]", model: "target"},
            facts={
                **versions,
                "blas": blas,
                "server options": cleaned(" ".join(options), folder_names(job)),
            },
        )

    def _options(self, job: Job) -> tuple[str, ...]:
        """Both arms run the same command, but for SpecPrefill's own flags. Never --continuous-batching, which ignores
        SpecPrefill for text."""
        shared = ("--prefill-step-size", str(job.step), "--timeout", str(SECONDS), "--enable-metrics")
        if job.draft_folder is None:
            return shared
        return (
            *shared,
            "--specprefill",
            *("--specprefill-draft-model", job.draft_folder),
            *("--specprefill-threshold", str(self.threshold)),
            *("--specprefill-keep-pct", f"{job.arm.keep:g}"),
        )

    def load(self, server: Server, start: Start) -> Mapping[str, str]:
        # It answers /health once both models are loaded.
        return {} if server.holds(start.environment.get("LD_PRELOAD")) else {"blas": STOCK}

    def request(self, job: Job, text: str) -> dict[str, Any]:
        # As our own rendering of the chat template: answers without a reasoning part.
        return {"enable_thinking": False}

    def read_log(self, job: Job, started: str, request: str) -> LogClaims:
        armed, loaded = ARMED.search(started), LOADED.search(started)
        scored = tuple(
            Scored(
                scored=int(found[1]),
                kept=int(found[3]),
                total=int(found[4]),
                # The percentage of this line is kept / total; the rate that was asked for stands in the first line.
                seconds={"score": float(found[2]), "sparse prefill": float(found[6])},
            )
            for found in SCORED.finditer(request)
        )
        failures = [found[0].strip() for found in FAILED.finditer(started + request)]
        failures += [found[0].strip() for found in SILENT.finditer(request)]
        return LogClaims(
            armed=armed is not None,
            threshold=int(armed[1]) if armed else None,
            keep=int(armed[2]) / 100 if armed else None,
            scored=scored,
            failures=tuple(failures),
            reasons=tuple(self._reasons(job, loaded, ran=bool(scored))),
            lines=tuple(line.strip() for line in (started + request).splitlines() if _decides(line)),
        )

    def _reasons(self, job: Job, loaded: re.Match[str] | None, ran: bool) -> Iterable[str]:
        if loaded is None:
            yield "the log does not say that the engine for one request at a time was loaded"
        elif loaded[0].startswith("Batched"):
            yield "the server batches requests, and then ignores SpecPrefill for text"
        elif loaded[1] == "True":
            yield "the server took the target for a model of images, whose route ignores SpecPrefill"
        if ran:
            yield from known_faults(self.history, KIND, self.version, job)

    def cached_tokens(self, answer: ChatAnswer) -> int | None:
        # The engine for one request at a time keeps nothing of a message without a system prompt.
        return answer.tokens("prompt_tokens_details.cached_tokens")

    def kept_bounds(self, job: Job) -> tuple[int, int] | None:
        low, high = kept_bounds(len(job.ids), job.arm.keep)
        if release_key(self.version) < release_key("0.4.0"):
            return low, high
        # From 0.4.0 on chunks are added until at least keep * total tokens are kept.
        return low, min(len(job.ids), high + CHUNK)

    def server_seconds(self, answer: ChatAnswer, claims: LogClaims) -> dict[str, float]:
        return dict(claims.scored[0].seconds) if claims.scored else {}


def _decides(line: str) -> bool:
    return "SpecPrefill" in line or "Engine loaded" in line or "INACTIVITY" in line


def engine(project: Project, settings: VllmMlxEngine) -> VllmMlx:
    """The engine of a study's settings.

    Raises:
        ReproError: there is no lock file for that version.
    """
    found = VllmMlx(project, load_history(project.config), settings.version, settings.threshold)
    require_lock(project, KIND, found.environment)
    return found
