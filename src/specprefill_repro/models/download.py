"""Bytes from the Hub to disk: resumed at the byte where they stopped, given up when nothing comes any more.

The Hub's client keeps a file only when it came whole, so that a killed download of many gigabytes would begin anew. So
the client's session is used here with a range of bytes, and what has come stays in FILE.part.
"""

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.models.hub import Patience, explain, file_address, pause_after, require_revision, shown
from specprefill_repro.models.schema import HubSource

AT_ONCE = 4
"""Files that are downloaded at the same time."""

Count = Callable[[int], None]


@dataclass(frozen=True)
class Wanted:
    """A file of a repository that is to lie at `target`, with its size in bytes."""

    path: str
    size: int
    target: Path

    @property
    def part(self) -> Path:
        """Where its bytes are until it is whole."""
        return self.target.with_name(f"{self.target.name}.part")


class _Stopped(Exception):
    """Another file failed, so this one need not be finished now."""


def missing_bytes(wanted: Iterable[Wanted]) -> int:
    """Bytes that have not come yet."""
    return sum(max(0, file.size - _size(file.part)) for file in wanted if not file.target.exists())


def download(source: HubSource, wanted: Iterable[Wanted], patience: Patience, count: Count) -> None:
    """Download files of a pinned repository, several at a time; those that are there are left alone.

    Sizes are checked here, hashes by the caller. `count` is told the bytes of every block that came, from any thread,
    one at a time.

    Raises:
        ReproError: the Hub can't be reached or refuses; a connection that stalls or dies again and again; a file that
            is not as long as it should be. What came is kept.
        OSError: as from writing any file, such as a full disk.
    """
    missing = [file for file in wanted if not file.target.exists()]
    stop = threading.Event()
    lock = threading.Lock()

    def count_one_at_a_time(block: int) -> None:
        with lock:
            count(block)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(_download, source, file, patience, count_one_at_a_time, stop) for file in missing]
        try:
            for future in as_completed(running):
                future.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _download(source: HubSource, file: Wanted, patience: Patience, count: Count, stop: threading.Event) -> None:
    """Get one file, asking again from where it stopped for as long as that brings new bytes."""
    import httpx2

    failures = 0
    while True:
        before = _size(file.part)
        try:
            _receive(source, file, patience, count, stop)
            break
        except httpx2.HTTPError as error:  # of the transport, or an answer that is no success
            problem = error
        failures = 1 if _size(file.part) > before else failures + 1
        pause = pause_after(problem, failures, patience)
        if pause is None:
            raise _gave_up(source, file, problem)
        if stop.wait(pause):
            raise _Stopped
    with file.part.open("rb") as finished:
        os.fsync(finished.fileno())
    file.part.replace(file.target)


def _receive(source: HubSource, file: Wanted, patience: Patience, count: Count, stop: threading.Event) -> None:
    """Append to the part what one request brings.

    Raises:
        httpx2.HTTPError: an answer that is no success, a connection that dies, stalls or ends early.
        ReproError: another revision, or more bytes than there should be.
    """
    import httpx2
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        get_session,
        hf_raise_for_status,
    )

    have = _size(file.part)
    if have > file.size:
        file.part.unlink()
        have = 0
    if have == file.size and file.part.exists():
        return
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    timeout = httpx2.Timeout(patience.stall)
    with get_session().stream("GET", file_address(source, file.path), headers=headers, timeout=timeout) as answer:
        hf_raise_for_status(answer)
        _require_commit(source, answer)
        if have and not (answer.status_code == 206 and _first_byte(answer) == have):
            have = 0  # the server knows no ranges: from the start
        # Neither side may hold bytes back: what came is on disk when the connection or the process dies.
        with file.part.open("ab" if have else "wb", buffering=0) as out:
            for block in answer.iter_bytes():
                have += len(block)
                if have > file.size:
                    out.close()
                    file.part.unlink()
                    raise _too_long(source, file)
                out.write(block)
                count(len(block))
                if stop.is_set():
                    raise _Stopped
    if have < file.size:
        raise httpx2.RemoteProtocolError(f"{file.path} ended after {have:,} of {file.size:,} bytes")


def _require_commit(source: HubSource, answer: Any) -> None:
    """The Hub names the commit of a file, in its own answer or in the one that leads on to where the file lies."""
    for one in (*answer.history, answer):
        commit = one.headers.get("X-Repo-Commit")
        if commit is not None:
            require_revision(source, commit)


def _first_byte(answer: Any) -> int | None:
    """From `Content-Range: bytes FIRST-LAST/SIZE`."""
    unit, _, ranges = str(answer.headers.get("Content-Range", "")).partition(" ")
    first = ranges.partition("-")[0]
    return int(first) if unit == "bytes" and first.isdigit() else None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _gave_up(source: HubSource, file: Wanted, error: Exception) -> ReproError:
    import httpx2

    have = _size(file.part)
    if isinstance(error, httpx2.TransportError):
        return ReproError(
            f"{file.path} of {source.repository} stopped after {have:,} of {file.size:,} bytes: "
            f"{shown(error) or type(error).__name__}",
            "The connection stalled or died, again and again without a new byte, or the file there is shorter than the "
            "Hub says.",
            "Check the network and run the same command again; what was downloaded is kept and goes on from there.",
            Exit.ENVIRONMENT,
        )
    return explain(source, error)


def _too_long(source: HubSource, file: Wanted) -> ReproError:
    return ReproError(
        f"{file.path} of {source.repository} has more than the {file.size:,} bytes that it should have.",
        "The server or a mirror sends another file than the one that was listed; it was thrown away.",
        "Run the same command again; if it stays, unset HF_ENDPOINT or choose another mirror.",
        Exit.VERIFICATION,
    )
