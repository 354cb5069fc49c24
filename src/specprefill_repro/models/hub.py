"""Ask the Hugging Face Hub, with its own client: what a repository holds at one commit, and what its errors mean.

The address is HF_ENDPOINT's, else the Hub's; the token is HF_TOKEN's, else that of `hf auth login`. The token goes into
the header of a request and nowhere else.
"""

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from specprefill_repro.errors import Exit, ReproError, without_password
from specprefill_repro.models.schema import HubSource, RelativePath

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server, in seconds, and how often to ask again."""

    stall: float = 30
    """Without a byte for so long, a connection counts as dead."""
    attempts: int = 6
    """In a row that bring nothing new; then it is an error."""
    pause: float = 1
    """Before the second attempt; each later pause is twice as long."""
    longest_pause: float = 120
    """A server that asks for a longer one (Retry-After) is not waited for."""


PATIENT = Patience()


@dataclass(frozen=True)
class RepositoryFile:
    path: str
    size: int
    sha256: str | None
    """As the Hub tells it, which it does for large files; else None."""
    git_sha1: str | None
    """The blob's id in Git; None of a large file, whose blob is only a pointer."""


@dataclass(frozen=True)
class Listing:
    """What a repository holds at one commit."""

    source: HubSource
    """With its revision."""
    files: tuple[RepositoryFile, ...]


def list_repository(source: HubSource, patience: Patience = PATIENT) -> Listing:
    """Names, sizes and hashes of the files of a repository, at its pinned revision or at the newest of its main branch.

    Raises:
        ReproError: offline; the Hub can't be reached or refuses; no such repository or revision; a mirror gave another
            revision; a path that leads out of the repository (exit code VERIFICATION).
    """
    from huggingface_hub import HfApi

    def question() -> Any:
        api = HfApi(endpoint=_endpoint())
        return api.model_info(source.repository, revision=source.revision, files_metadata=True, timeout=patience.stall)

    info = ask(source, question, patience)
    revision = require_revision(source, info.sha)
    files = []
    for sibling in info.siblings or []:
        _require_inside(source, sibling.rfilename)
        if sibling.size is None:
            raise ReproError(
                f"{source.repository}: the Hub does not tell the size of {sibling.rfilename}.",
                "A mirror answered that does not know the question for metadata of files.",
                "Unset HF_ENDPOINT, or choose another mirror.",
                Exit.ENVIRONMENT,
            )
        lfs = sibling.lfs
        files.append(
            RepositoryFile(
                path=sibling.rfilename,
                size=lfs.size if lfs else sibling.size,
                sha256=lfs.sha256 if lfs else None,
                git_sha1=None if lfs else sibling.blob_id,
            )
        )
    return Listing(
        source=source.model_copy(update={"revision": revision}),
        files=tuple(sorted(files, key=lambda file: file.path)),
    )


def file_address(source: HubSource, path: str) -> str:
    """Where a file of a pinned repository is downloaded from."""
    from huggingface_hub import hf_hub_url

    return hf_hub_url(source.repository, path, revision=source.revision, endpoint=_endpoint())


def cached_file(source: HubSource, path: str) -> Path | None:
    """The file in the Hub's own cache on this machine, where other programs put it; None when it isn't there."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(source.repository, path, revision=source.revision)
    return Path(found) if isinstance(found, str) and Path(found).is_file() else None


def offline() -> bool:
    """Whether the network is switched off, by `--offline` or by HF_HUB_OFFLINE."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "yes", "true")


def go_offline() -> None:
    """Switch the network off for this process and those that it starts: the Hub's client, and pip."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["PIP_NO_INDEX"] = "1"


def require_revision(source: HubSource, found: object) -> str:
    """The commit that a server answered with.

    Raises:
        ReproError: not a commit, or another one than is pinned (exit code VERIFICATION).
    """
    if isinstance(found, str) and re.fullmatch(r"[0-9a-f]{40}", found) and source.revision in (None, found):
        return found
    raise ReproError(
        f"{source.repository}: the Hub gave another revision.\n  expected {source.revision or 'a commit'}\n"
        f"  found    {shown(found)}",
        "A mirror or a cache answered with another commit than the pinned one.",
        "Unset HF_ENDPOINT, or choose another mirror.",
        Exit.VERIFICATION,
    )


def ask(source: HubSource, question: Callable[[], Answer], patience: Patience = PATIENT) -> Answer:
    """Call the Hub; wait and ask again where that can help, else turn its error into one in three parts.

    Raises:
        ReproError: see `explain`.
    """
    if offline():
        raise offline_error(source)
    attempt = 1
    while True:
        try:
            return question()
        except Exception as error:
            pause = pause_after(error, attempt, patience)
            if pause is None:
                raise explain(source, error) from None
        time.sleep(pause)
        attempt += 1


def pause_after(error: Exception, attempt: int, patience: Patience) -> float | None:
    """Seconds to wait before a failed request is repeated; None when repeating can't help, or was done often enough."""
    import httpx2

    if attempt >= patience.attempts:
        return None
    pause = min(patience.pause * 2 ** (attempt - 1), patience.longest_pause)
    status = status_of(error)
    if status is None:
        return pause if isinstance(error, httpx2.TransportError) else None
    if status not in (408, 429, 500, 502, 503, 504):
        return None
    asked = _retry_after(error)
    if asked is None:
        return pause
    return asked if asked <= patience.longest_pause else None


def explain(source: HubSource, error: Exception) -> ReproError:
    """What an error of the Hub's client means, and what to do about it."""
    from huggingface_hub import errors

    what = f"Could not get {source.repository} at {source.revision or 'its main branch'}"
    if isinstance(error, ReproError):
        return error
    if isinstance(error, errors.GatedRepoError):
        return ReproError(
            f"{what}: it is gated.",
            "Its licence must be accepted on the model's page, by the account that the token belongs to.",
            "Accept it there, then set HF_TOKEN to a token of that account, or log in with: hf auth login",
            Exit.ENVIRONMENT,
        )
    status = status_of(error)
    if status == 429:
        asked = _retry_after(error)
        wait = f" The Hub asks to wait {asked:,.0f} seconds." if asked is not None else ""
        return ReproError(
            f"{what}: too many requests (429).{wait}",
            "The Hub limits how often an address or an account may ask.",
            "Wait, then run the same command again; what was downloaded is kept. HF_TOKEN raises the limit.",
            Exit.ENVIRONMENT,
        )
    if status in (401, 403) and _has_token():
        return ReproError(
            f"{what}: the token was refused ({status}).",
            "It is wrong or has expired, or it has no right to read this repository.",
            "Set HF_TOKEN to a token that may read it; public models need none: unset HF_TOKEN",
            Exit.ENVIRONMENT,
        )
    if isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError) or status in (401, 403, 404):
        return ReproError(
            f"{what}: not found ({status}).",
            "The Hub has no such repository, revision or file, or the repository is private and no token is set.",
            "Check `repository` and `revision` in config/models.yaml; for a private one set HF_TOKEN.",
        )
    return ReproError(
        f"{what}: {shown(error)}",
        "There is no network, or the Hub cannot be reached or has a fault.",
        "Check the network and run the same command again; what was downloaded is kept.",
        Exit.ENVIRONMENT,
    )


def offline_error(source: HubSource) -> ReproError:
    """What is missing in a run without network."""
    return ReproError(
        f"{source.repository} would have to be asked of the Hub, and the network is switched off.",
        "This is an offline run (--offline, or HF_HUB_OFFLINE is set).",
        "Run the same command once without it, on a machine with network; later runs need none.",
        Exit.ENVIRONMENT,
    )


def status_of(error: Exception) -> int | None:
    """HTTP status of an error of the client; None when there was no answer."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def shown(value: object) -> str:
    """Text of a server as it may be shown: one line, short, without the token or the signature of an address."""
    from huggingface_hub import get_token

    text = " ".join(str(value).split())
    token = get_token()
    if token:
        text = text.replace(token, "[token]")
    text = re.sub(r"\bhf_\w{8,}", "[token]", text)
    text = re.sub(r"(https?://[^\s'\"?]+)\?[^\s'\"]*", r"\1", text)
    return without_password(text)[:200]


def _has_token() -> bool:
    from huggingface_hub import get_token

    return bool(get_token())


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or None


def _retry_after(error: Exception) -> float | None:
    """Seconds of a Retry-After header; None without one, or when it is a date."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    try:
        return max(0.0, float(headers.get("Retry-After", "")))
    except ValueError:
        return None


def _require_inside(source: HubSource, path: str) -> None:
    try:
        TypeAdapter(RelativePath).validate_python(path)
    except ValidationError:
        raise ReproError(
            f"{source.repository} lists a path that leads out of its folder: {shown(path)!r}",
            "No honest repository holds such a path; it could overwrite files of yours.",
            "Do not use this repository, or this mirror (HF_ENDPOINT).",
            Exit.VERIFICATION,
        ) from None
