"""A streamed answer is taken only when it is whole; one that a model ended itself may name no reason."""

import json
import math
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Event, Thread

import pytest

from specprefill_repro.engines import omlx
from specprefill_repro.engines.chat import UNSAID, ask
from specprefill_repro.errors import ReproError

DRIBBLED = {"before the headers": b"", "in the body": b"HTTP/1.0 200 OK\r\n\r\n"}
CALLS = {
    "a chat": lambda port: ask(port, {"model": "target"}, LIMIT),
    "a call": lambda port: omlx._call(port, "/v1/models/status", None, {}, LIMIT),
}
LIMIT = 0.5


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("where", DRIBBLED)
def test_a_byte_now_and_then_does_not_draw_an_answer_out(call: str, where: str) -> None:
    """Also over a connection that the server means to close, which http.client lets go of at once."""
    with dribbling(DRIBBLED[where]) as (port, hung_up), pytest.raises(ReproError, match=r"hangs|did not answer"):
        CALLS[call](port)
    assert hung_up.is_set()


@contextmanager
def dribbling(start: bytes) -> Iterator[tuple[int, Event]]:
    """The port of a server that goes on a byte at a time until the client hangs up, or for a hundred limits."""
    hung_up = Event()

    def serve() -> None:
        wire, _ = server.accept()
        with wire:
            wire.recv(1 << 16)
            wire.sendall(start)
            for _ in range(1000):
                try:
                    wire.sendall(b":")
                except OSError:
                    hung_up.set()
                    return
                time.sleep(LIMIT / 10)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], hung_up
        thread.join(100 * LIMIT)


ODD_EVENTS = [
    '{"choices": "text"}',
    '{"choices": {"delta": {"content": "x"}}}',
    '{"choices": [7]}',
    '{"choices": [{"delta": "text"}]}',
    '{"choices": [{"delta": [1]}]}',
    '{"usage": {"prompt_tokens": 1e999, "completion_tokens": NaN}}',
    "[" * 100_000,
]


@pytest.mark.parametrize("odd", ODD_EVENTS, ids=range(len(ODD_EVENTS)))
def test_an_event_of_another_shape_is_refused_in_words_or_passed_over(odd: str) -> None:
    with answering("stop", 11, odd) as port:
        try:
            found = ask(port, {"model": "target", "max_tokens": 12}, 5.0)
        except ReproError as error:
            assert "can't be used: an event" in error.what
        else:
            assert found.text == "It is" and all(map(math.isfinite, found.usage.values()))


@contextmanager
def answering(finish_reason: str | None, tokens: int, first: str | None = None) -> Iterator[int]:
    """The port of a server that answers with one piece of text, this reason and this number of tokens."""
    choices = [{"delta": {"content": "It is"}}], [{"delta": {}, "finish_reason": finish_reason}], []
    events = [{"model": "target", "choices": each} for each in choices]
    events[-1]["usage"] = {"prompt_tokens": 9, "completion_tokens": tokens}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            for data in (*([first] if first else []), *map(json.dumps, events), "[DONE]"):
                self.wfile.write(f"data: {data}\n\n".encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.handle_request, daemon=True)
        thread.start()
        yield server.server_port
        thread.join(5)


@pytest.mark.parametrize(
    ("said", "tokens", "reason"), [("length", 12, "length"), ("stop", 11, "stop"), (None, 11, UNSAID)]
)
def test_a_whole_answer_says_why_it_ended_or_is_shorter_than_was_asked(said, tokens, reason):
    with answering(said, tokens) as port:
        found = ask(port, {"model": "target", "max_tokens": 12}, 5.0)
    assert (found.finish_reason, found.text) == (reason, "It is")


@pytest.mark.parametrize(("said", "tokens"), [(None, 12), (None, 0), ("error", 11)])
def test_an_answer_that_ends_without_a_reason_at_full_length_is_not_whole(said, tokens):
    with answering(said, tokens) as port, pytest.raises(ReproError, match="its finish reason is"):
        ask(port, {"model": "target", "max_tokens": 12}, 5.0)
