"""A site in a static Space of the Hugging Face Hub, with the Hub's own client: one commit for a report.

The token is HF_TOKEN's and goes into the header of a request and nowhere else.
"""

import io
import logging
import os
import re
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from specprefill_repro.bundles.contents import Files
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.models.hub import shown, status_of
from specprefill_repro.publish.site import INDEX, Listing, Site, read_site

SPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
CARD = "README.md"
CARD_TEXT = b"""---
title: SpecPrefill reports
colorFrom: gray
colorTo: green
sdk: static
pinned: false
license: apache-2.0
---

Reports of specprefill-repro: does SpecPrefill shorten the time to first token?
"""
OWN_FILES = frozenset({CARD, ".gitattributes"})
"""What a new Space has by itself."""


class Space:
    def __init__(self, name: str) -> None:
        """Args: name: USER/NAME."""
        if not SPACE.fullmatch(name):
            raise ReproError(
                f"{name!r} is not the name of a Space.", "It has two parts.", "Give it as hf-space:USER/NAME"
            )
        self.name = name
        self._commit: str | None = None

    @property
    def place(self) -> str:
        return f"the Space {self.name}"

    @property
    def address(self) -> str:
        return f"{_endpoint()}/spaces/{self.name}"

    def read(self) -> Site:
        """The site that is there; without one, or without the Space, an empty one.

        Raises:
            ReproError: the Hub can't be reached or refuses, or something else is published there.
        """
        from huggingface_hub.errors import RepositoryNotFoundError

        self._commit = None
        try:
            info = _api().space_info(self.name)
        except RepositoryNotFoundError:
            return Site(Listing(), frozenset())
        except Exception as error:
            raise self._explain(error) from None
        self._commit = info.sha
        paths = frozenset(sibling.rfilename for sibling in info.siblings or [])
        if INDEX in paths:
            return read_site(self._download(INDEX), paths, self.place, self._download)
        if paths - OWN_FILES:
            raise ReproError(
                f"{self.place} holds other files.",
                "The Space is in use for something else, and a site needs one of its own.",
                "Give the name of another Space; it is made when it does not exist.",
            )
        return Site(Listing(), paths)

    def held(self, tell: Callable[[str], None]) -> AbstractContextManager[None]:
        """Nothing to hold: the Hub refuses a commit that is not made from the Space as it is."""
        return nullcontext()

    def write(self, files: Files, message: str) -> str:
        """Make the Space if there is none, and add the files in one commit; returns its address.

        Raises:
            ReproError: there is no token, the Hub refused, or the Space changed since it was read; it is then as it
                was.
        """
        from huggingface_hub import CommitOperationAdd
        from huggingface_hub.utils.tqdm import disable_progress_bars

        if not _token():
            raise ReproError(
                f"Nothing was published to {self.place}: HF_TOKEN is not set.",
                "Writing to the Hub needs a token of your account.",
                "Make one with write permission at huggingface.co/settings/tokens, and set HF_TOKEN to it.",
                Exit.ENVIRONMENT,
            )
        disable_progress_bars()
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        new = self._commit is None
        files = {**files, CARD: CARD_TEXT} if new else files
        # As streams, which take the plain upload over HTTP.
        operations = [CommitOperationAdd(path, io.BytesIO(content)) for path, content in sorted(files.items())]
        try:
            api = _api()
            if new:
                api.create_repo(self.name, repo_type="space", space_sdk="static", exist_ok=True)
                self._commit = self._empty(api)
            with warnings.catch_warnings():
                # That tables belong into a dataset: here they are evidence of a page.
                warnings.simplefilter("ignore", UserWarning)
                api.create_commit(
                    self.name, operations, commit_message=message, repo_type="space", parent_commit=self._commit
                )
        except ReproError:
            raise
        except Exception as error:
            raise self._explain(error) from None
        return self.address

    def _empty(self, api: Any) -> Any:
        """The commit of the Space that was just made.

        Raises:
            ReproError: somebody else made it, and published there first.
        """
        info = api.space_info(self.name)
        if any(sibling.rfilename == INDEX for sibling in info.siblings or []):
            raise ReproError(
                f"{self.place} was made by another publication meanwhile, and nothing was written.",
                "The list that was made here would leave out its report.",
                "Run the same command again.",
                Exit.ENVIRONMENT,
            )
        return info.sha

    def _download(self, path: str) -> bytes:
        from huggingface_hub import get_session, hf_hub_url
        from huggingface_hub.utils._headers import build_hf_headers
        from huggingface_hub.utils._http import hf_raise_for_status

        address = hf_hub_url(self.name, path, repo_type="space", revision=self._commit, endpoint=_endpoint())
        try:
            answer = get_session().get(address, headers=build_hf_headers(token=_token()), follow_redirects=True)
            hf_raise_for_status(answer)
        except Exception as error:
            raise self._explain(error) from None
        return bytes(answer.content)

    def _explain(self, error: Exception) -> ReproError:
        status = status_of(error)
        reasons = {
            401: ("HF_TOKEN is missing, wrong or expired.", "Set HF_TOKEN to a token with write permission."),
            403: ("The token may not write there.", "Use a token with write permission, of an account that may."),
            412: ("The Space changed meanwhile.", "Run the same command again."),
            429: ("The Hub limits how often it may be asked.", "Wait, then run the same command again."),
        }
        why, then = reasons.get(
            status or 0,
            ("There is no network, or the Hub can't be reached or has a fault.", "Run the same command again."),
        )
        return ReproError(
            f"{self.place} could not be read or written ({status or type(error).__name__}): {shown(error)}",
            f"{why} What is published there is unchanged.",
            then,
            Exit.ENVIRONMENT,
        )


def _token() -> str | bool:
    """HF_TOKEN's; False asks without any, also without one that a login left on this machine."""
    return os.environ.get("HF_TOKEN") or False


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi(endpoint=_endpoint(), token=_token())
