"""Does a measurement speak to a published claim? Condition by condition, with both values."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import log

from specprefill_repro.estimates.schema import CellEstimate, Estimates
from specprefill_repro.models.schema import Manifest
from specprefill_repro.study.schema import Study, Treatment
from specprefill_repro.verdicts.schema import Claim, ConditionMatch, Conditions

LENGTH_TOLERANCE = 0.05
MEMORY_TOLERANCE = 0.05
"""A machine reports a little less memory than it is sold with."""
KEEP_TOLERANCE = 1e-6
USUAL_KEEP = 0.2
JUDGED_METRICS = ("ttft_speedup",)
NEEDED = ("metric", "hardware", "target", "target quantisation", "draft", "keep rate", "prompt length")
"""Without these a figure can't be repeated: a claim that leaves one out gets no verdict."""


@dataclass(frozen=True)
class ModelFacts:
    identity: str
    """Its public name, such as mlx-community/Qwen3.5-2B-4bit."""
    quantization: str | None
    """Such as `4-bit`; `none` when the weights are not quantised; None when that is not known yet."""


@dataclass(frozen=True)
class EngineFacts:
    kind: str
    """As claims name it, such as vllm-mlx."""
    version: str | None


@dataclass(frozen=True)
class Facts:
    """What is known about this measurement besides its numbers; None: not known."""

    hardware: str | None = None
    memory_gib: float | None = None
    engines: Mapping[str, "EngineFacts"] = field(default_factory=dict)
    """By the study's names for them."""
    models: Mapping[str, ModelFacts] = field(default_factory=dict)
    """By the study's model names."""


def facts_of(estimates: Estimates, manifests: Mapping[str, Manifest]) -> Facts:
    """Facts from what the trials' processes found and from the models' manifests."""
    models = {
        name: ModelFacts(_identity(manifest), (manifest.quantization or "none").split(",")[0].strip())
        for name, manifest in manifests.items()
    }
    memory = _common(estimates, "memory_gib")
    return Facts(
        hardware=_common(estimates, "chip"),
        memory_gib=float(memory) if memory and re.fullmatch(r"\d+(\.\d+)?", memory) else None,
        engines={
            name: EngineFacts(found.kinds[0], _single(found.environment.get(found.kinds[0], ())))
            for name, found in estimates.engines.items()
            if len(found.kinds) == 1
        },
        models=models,
    )


def _common(estimates: Estimates, name: str) -> str | None:
    """What all trials agree on."""
    return _single(estimates.environment.get(name, ()))


def _single(values: tuple[str, ...]) -> str | None:
    return values[0] if len(values) == 1 else None


def _identity(manifest: Manifest) -> str:
    source = manifest.source
    # A padded, cut or random model is a model of its own, whatever it was made from.
    return source.repository if source.kind == "hf" else manifest.name


_FORMAT = re.compile(
    r"(\d+bit|\d+bits|mxfp\d+|nvfp\d+|fp\d+|bf\d+|f\d+|q\d+\w*|oq\d+\w*|int\d+|mixed\d*|dwq|gptq|awq|mlx|gguf|ud|mtp|k|m|s|g\d+)"
)
_ALIASES = {"it": "instruct", "chat": "instruct"}


def model_key(name: str) -> tuple[str, ...]:
    """What identifies a model in a name: family, version, size, variant, in order.

    Case, the publisher before the slash, remarks in parentheses and words for format and quantisation are left out.
    Sizes always stay, those of active parameters too, so that two sizes never match.
    """
    text = re.sub(r"\(.*?\)", " ", name.rsplit("/", 1)[-1].lower())
    text = re.sub(r"(\d)[ -]?bit\b", r"\1bit", text)
    words = [_ALIASES.get(word, word) for word in re.split(r"[^a-z0-9.]+", text) if word]
    # The first word is the family's name and never a format.
    return tuple(word for place, word in enumerate(words) if place == 0 or not _FORMAT.fullmatch(word))


def same_model(one: str, other: str) -> bool:
    return model_key(one) == model_key(other)


def same_text(one: str, other: str) -> bool:
    """Equal but for case, spaces, hyphens and marks such as (R) and (TM)."""
    return _plain(one) == _plain(other)


def _plain(text: str) -> str:
    return re.sub(r"[\s_-]+|\((r|tm)\)", "", text.lower())


def closest_cell(conditions: Conditions, cells: Iterable[CellEstimate]) -> CellEstimate | None:
    """The speculative cell nearest to a claim: by keep rate, then by length, then a measured one first."""
    keep, length = conditions.keep if conditions.keep is not None else USUAL_KEEP, conditions.prompt_tokens

    def distance(cell: CellEstimate) -> tuple[float, float, bool, str]:
        far = abs(log(cell.length / length)) if length else -cell.length
        return abs(cell.nominal_keep - keep), far, not cell.pairs, cell.cell

    return min((cell for cell in cells if cell.treatment is Treatment.SPECULATIVE), key=distance, default=None)


def match_conditions(claim: Claim, cell: CellEstimate, study: Study, facts: Facts) -> tuple[ConditionMatch, ...]:
    """One row a condition; `matches` is None where the source does not say or this measurement does not know."""
    said, pair = claim.conditions, study.pairs[cell.pair]
    target, draft = facts.models.get(pair.target), facts.models.get(pair.draft)
    engine = facts.engines.get(cell.engine)
    here_target, here_draft = _name(target, pair.target), _name(draft, pair.draft)
    rows = [
        _row("metric", claim.metric, "ttft_speedup", claim.metric in JUDGED_METRICS),
        _text("hardware", said.hardware, facts.hardware),
        _number("memory", said.memory_gib, facts.memory_gib, MEMORY_TOLERANCE, "{:g} GiB"),
        _row("target", said.target, here_target, said.target and same_model(said.target, here_target)),
        _text("target quantisation", said.target_quantization, target.quantization if target else None),
        _row("draft", said.draft, here_draft, said.draft and same_model(said.draft, here_draft)),
        _text("draft quantisation", said.draft_quantization, draft.quantization if draft else None),
        _number("keep rate", said.keep, cell.nominal_keep, KEEP_TOLERANCE, "{:g}"),
        _prompt_length(said, cell.length),
        _text("engine", said.engine, engine.kind if engine else None),
        _text("engine version", said.engine_version, engine.version if engine else None),
    ]
    if said.other:
        rows.append(_row("other", said.other, "not set here", False))
    return tuple(rows)


def is_full_match(rows: Iterable[ConditionMatch]) -> bool:
    """No condition differs, and those without which a figure can't be repeated are stated and met."""
    return all(row.matches is True or (row.matches is None and row.condition not in NEEDED) for row in rows)


def _name(model: ModelFacts | None, name: str) -> str:
    return model.identity if model else name


def _prompt_length(said: Conditions, here: int) -> ConditionMatch:
    row = _number("prompt length", said.prompt_tokens, here, LENGTH_TOLERANCE, "{:,.0f} tokens")
    if not said.prompt_tokens_stated:
        return row
    stated = f"{said.prompt_tokens_stated}, {row.claimed}" if said.prompt_tokens else said.prompt_tokens_stated
    return row.model_copy(update={"claimed": stated})


def _row(condition: str, claimed: str | None, here: str | None, matches: bool | str | None) -> ConditionMatch:
    known = claimed is not None and here is not None
    return ConditionMatch(
        condition=condition,
        claimed=claimed if claimed is not None else "not stated",
        here=here if here is not None else "not known",
        matches=bool(matches) if known else None,
    )


def _text(condition: str, claimed: str | None, here: str | None) -> ConditionMatch:
    return _row(condition, claimed, here, claimed is not None and here is not None and same_text(claimed, here))


def _number(condition: str, claimed: float | None, here: float | None, tolerance: float, words: str) -> ConditionMatch:
    matches = claimed is not None and here is not None and abs(here - claimed) <= tolerance * claimed
    return _row(
        condition,
        None if claimed is None else words.format(claimed),
        None if here is None else words.format(here),
        matches,
    )
