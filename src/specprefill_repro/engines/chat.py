"""One streamed chat request, timed at the client: from sending it to the first event that holds text.

Plain sockets by http.client: no proxy, no retry, no pool, nothing between the clock and the wire.
"""

import http.client
import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from specprefill_repro.engines.server import connection
from specprefill_repro.errors import Exit, ReproError

MAX_EVENT_BYTES = 1_000_000
MAX_ANSWER_BYTES = 50_000_000
BLOCK = 1 << 16
FINISHED = ("stop", "length")
UNSAID = "not said"
"""Finish reason of a whole answer that names none: vllm-mlx 0.2.9 leaves it out where the model itself ends one."""
TEXT_KEYS = ("content", "reasoning_content", "reasoning", "text")


@dataclass(frozen=True)
class ChatAnswer:
    """What came back."""

    first_seconds: float
    """From sending the request to the first event with text."""
    total_seconds: float
    """To the last event with text."""
    text: str
    first_text: str
    finish_reason: str
    usage: dict[str, float]
    """Numbers of the server's `usage`, nested ones by dotted names."""

    def tokens(self, name: str) -> int | None:
        """A count of the server's `usage`; None when it gives none of that name."""
        return int(self.usage[name]) if name in self.usage else None


@dataclass
class _Seen:
    """What the events have said so far."""

    pieces: list[str] = field(default_factory=list)
    first: float | None = None
    last: float = 0.0
    finish_reason: str | None = None
    usage: dict[str, float] = field(default_factory=dict)
    done: bool = False


def ask(
    port: int,
    body: Mapping[str, Any],
    limit_seconds: float,
    headers: Mapping[str, str] | None = None,
    path: str = "/v1/chat/completions",
) -> ChatAnswer:
    """Send a streamed request to a server on this machine and read its answer to the end.

    Events without text (role, keep-alive, heartbeat) do not count as a first token. The answer must name the model
    that was asked for, end with `[DONE]`, carry `usage`, and name a finish reason unless it is shorter than was asked.

    Args:
        body: of the request; its `model` is the name that every event must bear.
        limit_seconds: for the whole answer.

    Raises:
        ReproError: the server hangs, hangs up, refuses, or sends something else than such a stream.
    """
    seen = _Seen()
    content = json.dumps(body).encode()
    try:
        with connection(port, limit_seconds) as wire:
            start = time.perf_counter()
            wire.request("POST", path, content, {"Content-Type": "application/json", **(headers or {})})
            response = wire.getresponse()
            if response.status != http.client.OK:
                raise _refused(response)
            for data in _events(response):
                _take(data, str(body["model"]), seen)
                if seen.done:
                    break
    except TimeoutError as error:
        raise _hangs(limit_seconds, seen) from error
    except (OSError, http.client.HTTPException) as error:
        raise _broken(f"the connection broke ({type(error).__name__}: {error})", seen) from error
    if not seen.done:
        raise _broken("the stream ended before its end mark", seen)
    if seen.first is None:
        raise _broken("the answer holds no text", seen)
    if seen.finish_reason is None and 0 < seen.usage.get("completion_tokens", 0) < body.get("max_tokens", 0):
        seen.finish_reason = UNSAID
    elif seen.finish_reason not in FINISHED:
        raise _broken(f"its finish reason is {seen.finish_reason!r}", seen)
    if "prompt_tokens" not in seen.usage:
        raise _broken("it does not say how many prompt tokens it read (usage)", seen)
    return ChatAnswer(
        first_seconds=seen.first - start,
        total_seconds=seen.last - start,
        text="".join(seen.pieces),
        first_text=seen.pieces[0],
        finish_reason=seen.finish_reason,
        usage=seen.usage,
    )


def _events(response: http.client.HTTPResponse) -> Iterator[str]:
    """The `data` of each server-sent event as it arrives; comments are skipped.

    Raises:
        ReproError: an event or the whole answer is too large, or the stream ends inside an event.
    """
    waiting, total = b"", 0
    while block := response.read1(BLOCK):
        total += len(block)
        waiting = (waiting + block).replace(b"\r\n", b"\n")
        if total > MAX_ANSWER_BYTES or len(waiting) > MAX_EVENT_BYTES:
            raise _bad("it is larger than any answer can be")
        while b"\n\n" in waiting:
            event, _, waiting = waiting.partition(b"\n\n")
            lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield b"\n".join(lines).decode(errors="replace")
    if waiting.strip():
        raise _bad(f"the stream ended inside an event: {waiting[:100].decode(errors='replace')!r}")


def _take(data: str, model: str, seen: _Seen) -> None:
    """Take in one event."""
    now = time.perf_counter()
    if data == "[DONE]":
        seen.done = True
        return
    try:
        event = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _bad(f"an event is not JSON: {data[:100]!r}") from error
    if not isinstance(event, dict):
        raise _bad(f"an event is not an object: {data[:100]!r}")
    if event.get("error"):
        raise _bad(f"the server reports an error: {str(event['error'])[:300]}")
    if event.get("model") not in (None, model):
        raise _bad(f"it comes from the model {str(event['model'])[:100]!r}, not from {model!r}")
    choices = event.get("choices") or []
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise _bad(f"an event has no list of choices: {data[:100]!r}")
    for choice in choices:
        delta = choice["delta"] if isinstance(choice.get("delta"), dict) and choice["delta"] else choice
        text = next((delta[key] for key in TEXT_KEYS if isinstance(delta.get(key), str) and delta[key]), "")
        if text:
            seen.first = now if seen.first is None else seen.first
            seen.last = now
            seen.pieces.append(text)
        if choice.get("finish_reason"):
            seen.finish_reason = str(choice["finish_reason"])
    if isinstance(event.get("usage"), dict):
        seen.usage = dict(_numbers(event["usage"]))


def _numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf:
            yield f"{prefix}{name}", value


def _refused(response: http.client.HTTPResponse) -> ReproError:
    said = " ".join(response.read1(2000).decode(errors="replace").split())
    return ReproError(
        f"The server refused the request with status {response.status}: {said[:500]}",
        "It does not know the model's name, a parameter, or has not loaded the model.",
        "Check the engine's version in the study.",
        Exit.TRIAL,
    )


def _bad(how: str) -> ReproError:
    return ReproError(
        f"The server's answer can't be used: {how}.",
        "It is another server than the one that was started, or a version that speaks another dialect.",
        "Check the engine's version in the study; its log stands above.",
        Exit.TRIAL,
    )


def _broken(how: str, seen: _Seen) -> ReproError:
    got = f"{len(seen.pieces)} pieces of text had come" if seen.pieces else "no text had come"
    return ReproError(
        f"The server's answer is not whole: {how}; {got}.",
        "The server died or gave up while it answered.",
        "Its log stands above. Run the same command again: finished blocks are kept.",
        Exit.TRIAL,
    )


def _hangs(limit_seconds: float, seen: _Seen) -> ReproError:
    got = "the beginning of an answer" if seen.pieces else "no text"
    return ReproError(
        f"The server hangs: {got} came within {limit_seconds:g} seconds.",
        "It waits for something that does not come, or this machine is too slow for the prompt.",
        "Look at its log above; choose shorter prompts or a smaller pair in the study.",
        Exit.TRIAL,
    )
