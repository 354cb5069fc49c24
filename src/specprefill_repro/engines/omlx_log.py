"""What the log of an oMLX server says about SpecPrefill. The wording is the same from 0.3.5.dev1 to 0.3.9.dev1."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_SCORED = re.compile(
    r"SpecPrefill: scored (?P<scored>\d+) tokens in (?P<seconds>[\d.]+)s, selected (?P<selected>\d+)/\d+ "
    r"\(keep=(?P<keep>\d+)%, (?:draft cache hit (?P<hit>\d+), )?"
    r"prompt (?P<prompt>\d+) = system (?P<system>\d+) \+ conv -?\d+, cached (?P<cached>\d+)\)"
)
_SPARSE = re.compile(
    r"SpecPrefill: sparse prefill (?P<kept>\d+)/(?P<of>\d+) conv tokens in (?P<seconds>[\d.]+)s "
    r"\(total (?P<total>\d+), cached (?P<cached>\d+), system (?P<system>\d+) full"
)
_FAILED = re.compile(r"SpecPrefill (?:scoring|sparse prefill) failed.*")
_LOAD_FAILED = re.compile(r"SpecPrefill: draft model load failed.*")
_OTHER_ENGINE = re.compile(r"DFlash enabled for .*|Using DFlash.*", re.IGNORECASE)


@dataclass(frozen=True)
class Loading:
    """What the log says from the start to the end of loading the model."""

    draft_loaded: bool
    draft_caches: bool
    """The draft's keys are kept on disk from one request to the next."""
    failure: str | None
    """The line that says why the draft was not loaded."""
    other_engine: str | None
    """The line that says that an engine without SpecPrefill took the model."""


@dataclass(frozen=True)
class Request:
    """What the log says about one request."""

    times_scored: int
    """Lines that say so; more than one is more than one request, or one that was read twice."""
    tokens_scored: int
    """0 without such a line."""
    tokens_selected: int
    """What the selection kept of the scored tokens."""
    tokens_read: int | None
    """What the target read: selected ones, system prompt, and the last token, which starts the answer."""
    keep: float | None
    """Share of the scored tokens that was selected; the line gives it in whole percent."""
    prompt_tokens: int | None
    system_tokens: int
    cached_tokens: int
    draft_cached_tokens: int
    score_seconds: float | None
    sparse_seconds: float | None
    failure: str | None
    """The line that says why it became dense."""


def read_loading(lines: Iterable[str]) -> Loading:
    """Read the lines from the server's start to the end of loading the model."""
    text = "\n".join(lines)
    failure, other = _LOAD_FAILED.search(text), _OTHER_ENGINE.search(text)
    return Loading(
        draft_loaded="SpecPrefill: draft model set" in text and "SpecPrefill: draft model loaded (" in text,
        draft_caches="SpecPrefill: draft model set with SSD cache" in text,
        failure=failure[0] if failure else None,
        other_engine=other[0] if other else None,
    )


def read_request(lines: Iterable[str]) -> Request:
    """Read the lines of one request alone; of several lines of a kind the last counts."""
    text = "\n".join(lines)
    scored, sparse = _last(_SCORED, text), _last(_SPARSE, text)
    failure = _last(_FAILED, text)
    selected = int(scored["selected"]) if scored else 0
    return Request(
        times_scored=len(_SCORED.findall(text)),
        tokens_scored=int(scored["scored"]) if scored else 0,
        tokens_selected=selected,
        tokens_read=int(sparse["kept"]) + 1 + int(sparse["system"]) if sparse else None,
        keep=selected / int(scored["scored"]) if scored else None,
        prompt_tokens=int(scored["prompt"]) if scored else None,
        system_tokens=int(scored["system"]) if scored else 0,
        cached_tokens=max((int(line["cached"]) for line in (scored, sparse) if line), default=0),
        draft_cached_tokens=int(scored["hit"] or 0) if scored else 0,
        score_seconds=float(scored["seconds"]) if scored else None,
        sparse_seconds=float(sparse["seconds"]) if sparse else None,
        failure=failure[0] if failure else None,
    )


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(reversed(list(pattern.finditer(text))), None)
