"""One trial on a server: start it, wait, warm up, one timed request, an answer, stop, and judge by the log.

What differs from server to server is a `Dialect`; docs/engines.md says how to write one.
"""

import secrets
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from specprefill_repro.engines.chat import ChatAnswer, ask
from specprefill_repro.engines.server import (
    Limits,
    PortTaken,
    Server,
    ServerDied,
    free_port,
    running_server,
    server_environment,
)
from specprefill_repro.engines.server_evidence import LogClaims, outcome
from specprefill_repro.engines.server_log import cleaned, keep_log
from specprefill_repro.errors import ReproError
from specprefill_repro.trials.clock import suspended_between, suspension_clocks
from specprefill_repro.trials.job import Job, Measurement
from specprefill_repro.trials.machine import machine_facts, machine_state
from specprefill_repro.trials.schema import ServerEvidence

SHOWN = 10_000
"""Characters of a failed trial's log that are shown, of its beginning and of its end."""
DYING_SECONDS = 2.0
"""How long a server may take to end after an answer broke off, before this side ends it."""
STARTS = 3
"""Tries to start a server whose port another program takes meanwhile."""


@dataclass(frozen=True)
class Start:
    """How a server is started for one trial."""

    command: tuple[str, ...]
    model: str
    """Name that requests give and that every answer must bear; made for this trial alone where the server allows it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Besides what every server gets."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of every request."""
    private: Mapping[str, str] = field(default_factory=dict)
    """Secrets and paths -> what stands for them in a kept log."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Versions and settings, for the record."""


class Dialect(Protocol):
    """What differs from server to server."""

    @property
    def threshold(self) -> int:
        """Prompts of at most this many tokens run dense; as asked for."""

    @property
    def timed_tokens(self) -> int | None:
        """Tokens that the timed request asks for; None: the whole answer, where the first token is sent at once."""

    def prepare(self, job: Job, folder: Path, port: int) -> Start:
        """Check that the models can be compared on this server, and write its settings into `folder`, its home.

        Raises:
            ReproError: they can't, or the environment is not there.
        """

    def load(self, server: Server, start: Start) -> Mapping[str, str]:
        """Whatever must happen between the first sign of life and the first request, such as loading the model.

        Returns:
            What was found, for the record, in place of what `prepare` said.

        Raises:
            ReproError: it did not work.
        """

    def request(self, job: Job, text: str) -> dict[str, Any]:
        """Further keys of the body of a request; `model`, `messages`, `stream`, `max_tokens`, `temperature` are set."""

    def read_log(self, job: Job, started: str, request: str) -> LogClaims:
        """What the log says: `started` was printed before the first request, `request` while one was answered."""

    def cached_tokens(self, answer: ChatAnswer) -> int | None:
        """Prompt tokens that came from a cache; None: there is none on the way that a request takes here."""

    def kept_bounds(self, job: Job) -> tuple[int, int] | None:
        """Fewest and most kept tokens that are as asked; None: the published rule's."""

    def server_seconds(self, answer: ChatAnswer, claims: LogClaims) -> dict[str, float]:
        """What the server says that its parts took."""


@dataclass(frozen=True)
class _Asked:
    """One request: its answer, and where its log lines begin and end."""

    answer: ChatAnswer
    begin: int
    end: int


def measure_on_server(dialect: Dialect, job: Job, lease: int | None, limits: Limits | None = None) -> Measurement:
    """One trial in a fresh server; nothing of it runs any more when this returns or raises.

    Raises:
        ReproError: the server could not be measured; the end of its log goes to standard error.
    """
    for attempt in range(STARTS):
        try:
            return _measure(dialect, job, lease, limits or Limits())
        except PortTaken:
            if attempt == STARTS - 1:
                raise
    raise AssertionError("unreachable")


def _measure(dialect: Dialect, job: Job, lease: int | None, limits: Limits) -> Measurement:
    with tempfile.TemporaryDirectory(prefix="specprefill-server-", ignore_cleanup_errors=True) as name:
        folder, port = Path(name), free_port()
        start = dialect.prepare(job, folder, port)
        private = {str(folder): "[home]", **folder_names(job), **start.private}
        environment = {**server_environment(folder), **start.environment}
        spawned_at = time.perf_counter()
        with running_server(start.command, environment, folder, port, limits, lease) as server:
            try:
                return _trial(dialect, job, limits, start, server, spawned_at, private)
            except ReproError as error:
                # A server that dies closes its connections before it has ended, so what is ended at once looks well.
                server.listen(DYING_SECONDS)
                end = server.stop()
                told = cleaned(server.log(), private)
                print(told if len(told) < 2 * SHOWN else f"{told[:SHOWN]}\n[...]\n{told[-SHOWN:]}", file=sys.stderr)
                if end.too_much and not isinstance(error, ServerDied):
                    error = server.died("while it answered")
                elif not end.asked and not isinstance(error, ServerDied):
                    error.what += f" The server had ended {end.how}."
                error.what = cleaned(error.what, private)
                raise error


def _trial(
    dialect: Dialect,
    job: Job,
    limits: Limits,
    start: Start,
    server: Server,
    spawned_at: float,
    private: Mapping[str, str],
) -> Measurement:
    server.wait_until_ready()
    found = dialect.load(server, start)
    ready_seconds = time.perf_counter() - spawned_at
    started = server.mark()

    def request(text: str, tokens: int) -> _Asked:
        begin = server.mark()
        body = {
            "model": start.model,
            "messages": [{"role": "user", "content": text}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": tokens,
            "temperature": 0,
            **dialect.request(job, text),
        }
        answer = ask(server.port, body, limits.answer, start.headers)
        return _Asked(answer, begin, server.mark())

    warm_start = time.perf_counter()
    timed_tokens = dialect.timed_tokens or job.answer_tokens
    if job.warmup_text:
        request(job.warmup_text, timed_tokens)
    warmup_seconds = time.perf_counter() - warm_start

    before = machine_state()
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    sleep_before = suspension_clocks()
    timed = request(job.text, timed_tokens)
    suspended = suspended_between(sleep_before, suspension_clocks())
    after = machine_state()
    # A server that sends an answer only when it is whole is timed on a short one, and asked again for the rest.
    whole = request(job.text, job.answer_tokens) if job.answer_tokens > timed_tokens else timed
    facts = {**machine_facts(), **start.facts, **found}
    end = server.stop()

    text = server.log()
    log = server.log(0, started)
    claims = dialect.read_log(job, log, server.log(timed.begin, timed.end))
    result = _judge(dialect, job, claims, timed.answer)
    if whole is not timed:
        again = dialect.read_log(job, log, server.log(whole.begin, whole.end))
        other = _judge(dialect, job, again, whole.answer)
        if result in ("sparse", "dense") and other != result:
            result = f"fallback: when asked again for the whole answer: {other.removeprefix('fallback: ')}"
    return Measurement(
        seconds=timed.answer.first_seconds,
        warmup_seconds=warmup_seconds,
        ready_seconds=ready_seconds,
        text=whole.answer.text,
        decode_tokens=max(0, (whole.answer.tokens("completion_tokens") or 1) - 1),
        decode_seconds=whole.answer.total_seconds - whole.answer.first_seconds,
        peak_memory_bytes=end.peak_bytes,
        outcome=cleaned(result, private),
        evidence=_evidence(dialect, job, claims, timed.answer, cleaned(text, private), private),
        before=before,
        after=after,
        suspended_seconds=suspended,
        started_at=started_at,
        environment=facts,
    )


def _judge(dialect: Dialect, job: Job, claims: LogClaims, answer: ChatAnswer) -> str:
    cached = dialect.cached_tokens(answer)
    return outcome(job.arm, len(job.ids), dialect.threshold, claims, cached, dialect.kept_bounds(job))


def _evidence(
    dialect: Dialect, job: Job, claims: LogClaims, answer: ChatAnswer, log: str, private: Mapping[str, str]
) -> ServerEvidence:
    counted = answer.tokens("prompt_tokens") or 0
    # Where the log ends in a failure, the target has read everything after all.
    seen = claims.scored[0] if claims.scored and not claims.failures else None
    scored = claims.scored[0] if claims.scored else None
    return ServerEvidence(
        prompt_tokens=counted,
        tokens_scored=scored.scored if scored else 0,
        tokens_kept=seen.kept if seen else counted,
        keep_logged=scored.keep if scored and scored.keep is not None else claims.keep,
        threshold_logged=claims.threshold,
        cached_tokens=scored.cached if scored and scored.cached else dialect.cached_tokens(answer),
        draft_cached_tokens=scored.draft_cached if scored else 0,
        completion_tokens=answer.tokens("completion_tokens") or 0,
        finish_reason=answer.finish_reason,
        first_text=answer.first_text[:200],
        lines=tuple(cleaned(line, private)[:500] for line in claims.lines[:20]),
        server_seconds=dialect.server_seconds(answer, claims),
        log_sha256=keep_log(Path(job.log_file), log),
    )


def folder_names(job: Job) -> dict[str, str]:
    """Model folders -> their names alone, for what is kept."""
    return {folder: Path(folder).name for folder in (job.target_folder, job.draft_folder) if folder}


def new_secret() -> str:
    """A key or a name that no other server on this machine knows."""
    return secrets.token_hex(8)
