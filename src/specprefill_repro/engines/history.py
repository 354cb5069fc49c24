"""What is known about releases of server engines: config/engine_history.yaml, and what of it concerns one run.

Reads neither mlx nor mlx_lm: a model is known by its config.json, so that a page can be re-verified anywhere.
"""

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from specprefill_repro.errors import ReproError
from specprefill_repro.files import MAX_CONFIG_BYTES, read_limited, read_yaml_model
from specprefill_repro.schema import Frozen

_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)(?:[._-]?(dev|a|b|rc)(\d*))?")
_STAGES = {"dev": 0, "a": 1, "b": 2, "rc": 3, None: 4}


def release_key(version: str) -> tuple[tuple[int, ...], int, int]:
    """Orders releases: 0.3.5.dev1 < 0.3.5rc1 < 0.3.5 < 0.3.10.

    Raises:
        ValueError: it is no release number.
    """
    found = _RELEASE.match(version)
    if found is None:
        raise ValueError(f"{version!r} is not a release number such as 0.3.5 or 0.3.5.dev1")
    numbers = tuple(int(part) for part in found[1].split("."))
    while numbers and numbers[-1] == 0:
        numbers = numbers[:-1]
    return numbers, _STAGES[found[2]], int(found[3] or 0)


def _is_release(version: str) -> str:
    release_key(version)
    return version


Release = Annotated[str, AfterValidator(_is_release)]


class Trait(StrEnum):
    """Of a model, by its config.json: what one engine or another stumbles over."""

    PLAIN_ROPE = "plain-rope"
    """Its rotary embedding holds no array: mlx.nn.RoPE itself."""
    ARRAY_ROPE = "array-rope"
    """Its rotary embedding holds an array of frequencies (llama3, yarn, longrope and proportional scaling)."""
    TRADITIONAL_ROPE = "traditional-rope"
    """Rotates neighbours instead of halves."""
    SLIDING_WINDOW = "sliding-window"
    QUERY_NORM = "query-norm"
    """Normalises queries and has no gate on them."""
    SHARED_KEYS = "shared-keys"
    """Layers may use the keys of another one: Gemma 4."""
    VISION = "vision"


class Role(StrEnum):
    DRAFT = "draft"
    TARGET = "target"


class Effect(StrEnum):
    DENSE = "dense"
    WRONG = "wrong"
    """Sparse by every line of the log, but not the computation that was asked for."""
    FASTER = "faster"
    """Sparse, with less work than a first prompt takes."""
    CUT = "cut"
    """The answer ends early."""


class Seen(StrEnum):
    RUN = "run"
    SOURCE = "source"
    REPORT = "report"


class Range(Frozen):
    """Releases of one engine."""

    engine: str
    since: Release
    """The first with it."""
    before: Release | None = None
    """The first without it; none: in every one that was read."""

    def holds(self, engine: str, version: str) -> bool:
        if self.engine != engine:
            return False
        try:
            key = release_key(version)
        except ValueError:
            return self.before is None
        return release_key(self.since) <= key and (self.before is None or key < release_key(self.before))


class When(Frozen):
    """The model that it takes."""

    role: Role
    trait: Trait


class Fallback(Frozen):
    """One way of running dense, or wrongly, although SpecPrefill was asked for."""

    row: int = Field(ge=1)
    """Number in docs/engines.md."""
    id: str = Field(pattern=r"^[a-z0-9-]{1,40}$")
    where: tuple[Range, ...] = Field(min_length=1)
    when: When | None = None
    """None: it is about flags, requests or prompts, whatever the models are."""
    effect: Effect
    shown: str = Field(pattern=r"^(log|answer|nowhere)$")
    sentence: str
    guard: str
    seen: Seen
    sources: tuple[str, ...] = Field(min_length=1)


class Change(Frozen):
    """What made SpecPrefill work, or stop working, in a release."""

    engine: str
    version: Release
    """The first release with it."""
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    """Of the commit."""
    commit: str | None = Field(default=None, pattern=r"^[0-9a-f]{7,40}$")
    pull_request: int | None = None
    effect: str = Field(pattern=r"^(starts|stops|mends|changes)$")
    sentence: str

    @property
    def source(self) -> str:
        """Where it can be looked up, such as `vllm-mlx, pull request 441, commit d256d37, 2026-04-28`."""
        request = [] if self.pull_request is None else [f"pull request {self.pull_request}"]
        commit = [] if self.commit is None else [f"commit {self.commit}"]
        return ", ".join([self.engine, *request, *commit, self.date])


class EngineHistory(Frozen):
    fallbacks: tuple[Fallback, ...]
    changes: tuple[Change, ...]

    def traps(
        self, engine: str, version: str, target: Mapping[str, Any], draft: Mapping[str, Any] | None
    ) -> tuple[Fallback, ...]:
        """Fallbacks that this release has with these two models, whatever is asked of it.

        A version that is not a release number counts as the newest.

        Args:
            target, draft: the content of their config.json.
        """
        traits = {Role.TARGET: model_traits(target), Role.DRAFT: model_traits(draft) if draft else frozenset()}
        return tuple(
            fallback
            for fallback in self.fallbacks
            if fallback.when is not None
            and fallback.when.trait in traits[fallback.when.role]
            and any(each.holds(engine, version) for each in fallback.where)
        )

    def silent_traps(
        self, engine: str, version: str, target: Mapping[str, Any], draft: Mapping[str, Any] | None
    ) -> tuple[Fallback, ...]:
        """Those of `traps` that the log calls sparse although they are wrong: only this table tells."""
        found = self.traps(engine, version, target, draft)
        return tuple(fallback for fallback in found if fallback.effect is Effect.WRONG)

    def changes_between(self, engine: str, good: str, bad: str) -> tuple[Change, ...]:
        """Changes after the older of two releases, up to the newer one, oldest first."""
        older, newer = sorted((release_key(good), release_key(bad)))
        found = [each for each in self.changes if each.engine == engine and older < release_key(each.version) <= newer]
        return tuple(sorted(found, key=lambda each: (release_key(each.version), each.date)))


def load_history(config: Path) -> EngineHistory:
    """Read engine_history.yaml of the folder `config`.

    Raises:
        ReproError: it is missing or not valid.
    """
    return read_yaml_model(config / "engine_history.yaml", EngineHistory)


# In mlx_lm, whatever config.json says.
_ALWAYS_TRADITIONAL = frozenset(
    "cohere cohere2 deepseek_v2 deepseek_v3 deepseek_v32 ernie4_5 ernie4_5_moe glm glm4_moe_lite gptj helium llama4 "
    "llama4_text longcat_flash".split()
)
_TRADITIONAL_BY_DEFAULT = frozenset(("glm4", "youtu_llm"))
_ARRAY_SCALINGS = frozenset(("llama3", "yarn", "deepseek_yarn", "longrope", "su", "proportional"))
_QUERY_NORM = frozenset("qwen3 qwen3_moe gemma3 gemma3_text".split())
_GEMMA4 = frozenset("gemma4 gemma4_text gemma4_unified".split())
# Types whose layers alternate, whatever config.json says of their kinds.
_WINDOWS = frozenset("gemma3 gemma3_text gemma4 gemma4_text gemma4_unified gpt_oss cohere2".split())


def model_traits(config: Mapping[str, Any]) -> frozenset[Trait]:
    """What config.json says about a model; the text model's part where it has one."""
    inner = config.get("text_config")
    text: Mapping[str, Any] = inner if isinstance(inner, Mapping) else config
    kinds = {str(config.get("model_type")), str(text.get("model_type"))}
    found: set[Trait] = set()
    if kinds & _GEMMA4:
        found.add(Trait.SHARED_KEYS)
    if kinds & _QUERY_NORM:
        found.add(Trait.QUERY_NORM)
    if isinstance(config.get("vision_config"), Mapping):
        found.add(Trait.VISION)
    if "nemotron_h" not in kinds:
        found.add(Trait.ARRAY_ROPE if _holds_array(text) else Trait.PLAIN_ROPE)
    by_default = bool(kinds & _TRADITIONAL_BY_DEFAULT)
    if kinds & _ALWAYS_TRADITIONAL or text.get("rope_traditional", by_default) is True:
        found.add(Trait.TRADITIONAL_ROPE)
    if _has_window(text, kinds):
        found.add(Trait.SLIDING_WINDOW)
    return frozenset(found)


def _holds_array(text: Mapping[str, Any]) -> bool:
    scalings = (text.get("rope_scaling"), text.get("rope_parameters"))
    named = {
        str(scaling.get("rope_type") or scaling.get("type")) for scaling in scalings if isinstance(scaling, Mapping)
    }
    return bool(named & _ARRAY_SCALINGS)


def _has_window(text: Mapping[str, Any], kinds: set[str]) -> bool:
    if text.get("use_sliding_window") is False:
        return False
    layers = text.get("layer_types")
    if isinstance(layers, list):
        return "sliding_attention" in layers
    return bool(kinds & _WINDOWS)


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model's folder.

    Raises:
        ReproError: it is missing or not JSON.
    """
    path = folder / "config.json"
    try:
        value = json.loads(read_limited(path, MAX_CONFIG_BYTES))
    except ValueError as error:
        raise ReproError(f"{path} is not JSON: {error}", "The file is damaged.", "Fetch the model again.") from error
    return value if isinstance(value, dict) else {}
