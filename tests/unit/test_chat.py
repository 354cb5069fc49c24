"""A streamed answer is taken only when it is whole; one that a model ended itself may name no reason."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from specprefill_repro.engines.chat import UNSAID, ask
from specprefill_repro.errors import ReproError


@contextmanager
def answering(finish_reason: str | None, tokens: int) -> Iterator[int]:
    """The port of a server that answers with one piece of text, this reason and this number of tokens."""
    choices = [{"delta": {"content": "It is"}}], [{"delta": {}, "finish_reason": finish_reason}], []
    events = [{"model": "target", "choices": each} for each in choices]
    events[-1]["usage"] = {"prompt_tokens": 9, "completion_tokens": tokens}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            for data in (*map(json.dumps, events), "[DONE]"):
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
