"""A Hugging Face repository at one commit as the source of a model; only data files, never code."""

import os
from pathlib import Path
from typing import Any

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.models.local import REFUSED, TEXT_FILES, place
from specprefill_repro.models.progress import Progress
from specprefill_repro.models.schema import HubSource


def resolve_revision(source: HubSource) -> HubSource:
    """Return the source with the commit that its repository's main branch is at now; unchanged when it names one.

    Raises:
        ReproError: the Hub cannot be reached, or has no such repository.
    """
    if source.revision is not None:
        return source
    from huggingface_hub import HfApi

    revision = _ask(source, lambda: HfApi().model_info(source.repository).sha)
    return source.model_copy(update={"revision": revision})


def require_pinned(name: str, source: HubSource) -> None:
    """Raise a ReproError when neither the definition nor the lock names a commit."""
    if source.revision is None:
        raise ReproError(
            f"{name}: no revision of {source.repository} is pinned.",
            "A branch moves, so that the same study would measure another model tomorrow.",
            f"specprefill-repro lock {name}",
        )


def download_snapshot(name: str, source: HubSource, out: Path, progress: Progress) -> None:
    """Put configuration, tokenizer and safetensors of a pinned revision into the folder `out`.

    They go through the Hub's own cache, so an interrupted download goes on where it was; then weights are linked.

    Raises:
        ReproError: the Hub cannot be reached, or it has pickled weights only.
    """
    from huggingface_hub import snapshot_download

    progress(f"download {source.repository}", 0, 0)
    patterns = [*TEXT_FILES, "model*.safetensors"]
    snapshot = Path(
        _ask(
            source,
            lambda: snapshot_download(source.repository, revision=source.revision, allow_patterns=patterns),
        )
    )
    # A proxy or a cache that ignores the revision must not pass unseen.
    if snapshot.name != source.revision:
        raise ReproError(
            f"{name}: the Hub gave another revision.\n  expected {source.revision}\n  found    {snapshot.name}",
            "A mirror answered with another commit than the pinned one.",
            "Unset HF_ENDPOINT, or choose another mirror.",
            Exit.VERIFICATION,
        )
    for path in sorted(snapshot.iterdir()):
        if path.name in TEXT_FILES or (path.name.startswith("model") and path.suffix == ".safetensors"):
            place(path, out / path.name)
    if not any(out.glob("model*.safetensors")):
        raise ReproError(
            f"{name}: {source.repository} has no safetensors at revision {source.revision}.",
            f"Only safetensors are taken; files such as {', '.join(REFUSED[:3])} can run code when they are read.",
            "Choose a repository with model*.safetensors, such as one of mlx-community.",
            Exit.VERIFICATION,
        )


def snapshot_bytes(source: HubSource) -> int:
    """Bytes of the files that would be taken; 0 when the Hub is not asked (offline)."""
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        return 0
    info = _ask(source, lambda: HfApi().model_info(source.repository, revision=source.revision, files_metadata=True))
    return sum(
        file.size or 0
        for file in info.siblings or []
        if file.rfilename in TEXT_FILES or (file.rfilename.endswith(".safetensors") and "/" not in file.rfilename)
    )


def cache_folder() -> Path:
    """The Hub's cache, or the nearest folder above it that exists already."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(os.path.abspath(HF_HUB_CACHE))  # noqa: PTH100 (links stay as they are)
    while not folder.exists():
        folder = folder.parent
    return folder


def _ask(source: HubSource, question: Any) -> Any:
    """Call the Hub; turn its errors into one in three parts."""
    from huggingface_hub import errors

    http_error: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]
    where = f"{source.repository} at {source.revision or 'its main branch'}"
    try:
        return question()
    except errors.GatedRepoError as error:
        why = "The repository is gated: its licence must be accepted first."
        next_step = "Accept it on the model's page, then log in with: hf auth login"
        raise ReproError(f"Could not get {where}.", why, next_step, Exit.ENVIRONMENT) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        why = "The Hub has no such repository or revision, or it is private."
        next_step = "Check `repository` and `revision` in config/models.yaml."
        raise ReproError(f"Could not get {where}.", why, next_step) from error
    except (http_error, OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        why = "There is no network, the Hub cannot be reached, or it is switched off (HF_HUB_OFFLINE)."
        next_step = "Check the network and run the same command again; what was downloaded is kept."
        raise ReproError(f"Could not get {where}: {reason}", why, next_step, Exit.ENVIRONMENT) from error
