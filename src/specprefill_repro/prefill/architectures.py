"""The model types this package knows, and where each keeps what matters here. Anything else is refused, never guessed.

`docs/adding-a-model.md` says how to add one: an entry in `ARCHITECTURES`, and its test.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import ModuleType
from typing import Any

import mlx.nn as nn

from specprefill_repro.errors import ReproError


class Kind(StrEnum):
    """What a layer does with the tokens before its own."""

    ATTENTION = "attention"
    RECURRENT = "recurrent"
    """Keeps a state instead of keys: it has no positions, and simply reads fewer tokens."""
    NEITHER = "neither"
    """An MLP or experts alone: no cache."""


def _all_attend(layer: nn.Module) -> Kind:
    return Kind.ATTENTION


def _full(text: nn.Module, index: int) -> None:
    return None


def _own_keys(layer: nn.Module) -> bool:
    return True


@dataclass(frozen=True)
class Architecture:
    """Names in mlx_lm's code for a model type."""

    code: str
    """Module under mlx_lm.models that defines the class of the (text) model."""
    texts: tuple[str, ...] = ()
    """For a multimodal checkpoint: the entries that its `language_model` may be; the rest is theirs to say."""
    attention: str = "self_attn"
    """Of a layer that attends: its attention module."""
    trunk: str = "model"
    """Of the (text) model: all of it below the head."""
    norm: str = "norm"
    """Of the trunk: the norm between its last layer and the head."""
    rotary: str | None = "rope"
    """Of the attention module: its rotary embedding; None when the model has none."""
    kind: Callable[[nn.Module], Kind] = _all_attend
    window: Callable[[nn.Module, int], int | None] = _full
    """Of the text model and a layer's index: how many positions back, its own included, that layer attends."""
    owns_keys: Callable[[nn.Module], bool] = _own_keys
    """Of a layer: False when it attends to the keys of an earlier layer and has no cache."""
    sinks: str | None = None
    """Of the attention module: logits that take part in the softmax without a key."""
    query_scale: str | None = None
    """A function of `code` that scales queries by their position."""


def _use_sliding(text: nn.Module, index: int) -> int | None:
    return int(text.args.sliding_window) if text.layers[index].use_sliding else None


def _is_sliding(text: nn.Module, index: int) -> int | None:
    return int(text.args.sliding_window) if text.layers[index].self_attn.is_sliding else None


def _gpt_oss_window(text: nn.Module, index: int) -> int | None:
    return int(text.args.sliding_window) if text.model.layer_types[index] == "sliding_attention" else None


def _linear_or_attention(layer: nn.Module) -> Kind:
    return Kind.RECURRENT if layer.is_linear else Kind.ATTENTION


def _nemotron_kind(layer: nn.Module) -> Kind:
    return {"*": Kind.ATTENTION, "M": Kind.RECURRENT, "-": Kind.NEITHER, "E": Kind.NEITHER}[layer.block_type]


_LLAMA = Architecture(code="llama", window=_use_sliding)
_QWEN3_5 = Architecture(code="qwen3_5", kind=_linear_or_attention)

ARCHITECTURES = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "ministral3": Architecture(code="ministral3", window=_use_sliding, query_scale="_get_llama_4_attn_scale"),
    "mistral3": Architecture(code="mistral3", texts=("ministral3", "mistral")),
    "qwen2": Architecture(code="qwen2"),
    "qwen3": Architecture(code="qwen3"),
    "qwen3_moe": Architecture(code="qwen3_moe"),
    "qwen3_next": Architecture(code="qwen3_next", kind=_linear_or_attention),
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5": Architecture(code="qwen3_5", texts=("qwen3_5_text",)),
    "qwen3_5_moe": Architecture(code="qwen3_5_moe", texts=("qwen3_5_text",)),
    "gemma3_text": Architecture(code="gemma3_text", window=_is_sliding),
    "gemma3": Architecture(code="gemma3", texts=("gemma3_text",)),
    "gemma4_text": Architecture(
        code="gemma4_text", window=_is_sliding, owns_keys=lambda layer: bool(layer.self_attn.has_kv)
    ),
    "gemma4": Architecture(code="gemma4", texts=("gemma4_text",)),
    "gemma4_unified": Architecture(code="gemma4", texts=("gemma4_text",)),
    "nemotron_h": Architecture(
        code="nemotron_h", attention="mixer", trunk="backbone", norm="norm_f", rotary=None, kind=_nemotron_kind
    ),
    "gpt_oss": Architecture(code="gpt_oss", window=_gpt_oss_window, sinks="sinks"),
    "glm4": Architecture(code="glm4"),
    "phi3": Architecture(code="phi3"),
}

# Of each rotary embedding of mlx_lm that may be rotated by a list of positions: the attribute with its width.
ROTARY_WIDTHS = {
    "RoPE": "dims",
    "Llama3RoPE": "dims",
    "YarnRoPE": "dims",
    "SuScaledRoPE": "dim",
    "ProportionalRoPE": "dims",
    "DynamicNTKScalingRoPE": "dims",
}


@dataclass(frozen=True)
class AttentionLayer:
    index: int
    """Of the layer, among all layers of the model."""
    module: nn.Module
    """Its attention module."""
    rotary: str | None
    """Name of the rotary embedding in it."""
    window: int | None
    cache: int | None
    """Index of the cache it writes its keys to; None when it uses another layer's."""


@dataclass(frozen=True)
class Structure:
    """A model, taken apart as its entry says, and found to be built that way."""

    architecture: Architecture
    text: nn.Module
    """The model of text: the model itself, or the one inside a multimodal checkpoint."""
    attention: tuple[AttentionLayer, ...]
    recurrent: tuple[int, ...]
    """Indices of the recurrent layers."""
    caches: tuple[Kind, ...]
    """What each cache of the model belongs to, in order."""

    @property
    def trunk(self) -> nn.Module:
        """All of the model of text below its head."""
        return getattr(self.text, self.architecture.trunk)

    @property
    def final_norm(self) -> nn.Module:
        """The norm between the last layer and the head."""
        return getattr(self.trunk, self.architecture.norm)

    @property
    def code(self) -> ModuleType:
        """The mlx_lm module whose attention calls a function that it imported by name."""
        return sys.modules[type(self.attention[0].module).__module__]

    @property
    def rotary_modules(self) -> list[nn.Module]:
        """The attention modules that rotate queries and keys, in order of layers."""
        return [layer.module for layer in self.attention if layer.rotary is not None]

    @property
    def cautions(self) -> tuple[str, ...]:
        """What is special about this model, in words."""
        names = {type(getattr(layer.module, layer.rotary)).__name__ for layer in self.attention if layer.rotary}
        said = {
            "sliding windows": any(layer.window is not None for layer in self.attention),
            "attention sinks": self.architecture.sinks is not None,
            "keys shared between layers": any(layer.cache is None for layer in self.attention),
            "no rotary embedding": self.architecture.rotary is None,
            "recurrent layers": self.recurrent != (),
            "queries scaled by position": self.architecture.query_scale is not None,
            "a rotary base that depends on the prompt's length": "DynamicNTKScalingRoPE" in names,
        }
        return tuple(words for words, applies in said.items() if applies)


def structure(model: nn.Module) -> Structure:
    """Take a model apart as the table says.

    Raises:
        ReproError: the model type is not in the table, or the model is not built as the table says.
    """
    name, text = _entry(model)
    known = ARCHITECTURES[name]
    attention: list[AttentionLayer] = []
    recurrent: list[int] = []
    caches: list[Kind] = []
    for index, layer in enumerate(text.layers):
        kind = known.kind(layer)
        # `is None`, never truth: an mlx module without parameters is an empty dict, and so false.
        module = getattr(layer, known.attention, None)
        if kind is Kind.ATTENTION:
            if module is None:
                raise _other_build(name, f"layer {index} has no {known.attention}")
            _check_attention(name, known, index, module)
            owner = known.owns_keys(layer)
            attention.append(
                AttentionLayer(index, module, known.rotary, known.window(text, index), len(caches) if owner else None)
            )
            if not owner:
                continue
        elif kind is Kind.RECURRENT:
            recurrent.append(index)
        if kind is not Kind.NEITHER:
            caches.append(kind)
    if not attention:
        raise _other_build(name, "no layer attends")
    if len({type(layer.module).__module__ for layer in attention}) != 1:
        raise _other_build(name, "its attention modules come from several places")
    if getattr(getattr(text, known.trunk, None), known.norm, None) is None:
        raise _other_build(name, f"it has no {known.trunk}.{known.norm}")
    found = Structure(known, text, tuple(attention), tuple(recurrent), tuple(caches))
    for function in ("scaled_dot_product_attention", known.query_scale):
        if function is not None and not hasattr(found.code, function):
            raise _other_build(name, f"{found.code.__name__} does not use {function}")
    return found


def _entry(model: nn.Module) -> tuple[str, nn.Module]:
    """Name of the entry that describes the model of text, and that model."""
    model_type = str(model.model_type)
    known = ARCHITECTURES.get(model_type)
    if known is None:
        raise _unknown(model_type)
    _check_code(model_type, known, model)
    if not known.texts:
        return model_type, model
    text = getattr(model, "language_model", None)
    if text is None:
        raise _other_build(model_type, "it has no language_model")
    for name in known.texts:
        if type(text).__module__ == f"mlx_lm.models.{ARCHITECTURES[name].code}":
            return name, text
    raise _unknown(f"{model_type} with {type(text).__module__.rpartition('.')[2]} inside")


def _check_code(name: str, known: Architecture, model: nn.Module) -> None:
    module = type(model).__module__
    if module != f"mlx_lm.models.{known.code}":
        raise _other_build(name, f"it is built by {module}")


def _check_attention(name: str, known: Architecture, index: int, module: nn.Module) -> None:
    for attribute in (known.rotary, known.sinks):
        if attribute is not None and getattr(module, attribute, None) is None:
            raise _other_build(name, f"layer {index} has no {known.attention}.{attribute}")
    if known.rotary is None and getattr(module, "rope", None) is not None:
        raise _other_build(name, f"layer {index} has a rotary embedding")
    if known.sinks is None and getattr(module, "sinks", None) is not None:
        raise _other_build(name, f"layer {index} has attention sinks")


def _unknown(what: str) -> ReproError:
    return ReproError(
        f"Model type {what!r} is not supported; supported: {', '.join(sorted(ARCHITECTURES))}.",
        "Positions and attention scores were never checked on this architecture, so its numbers could be wrong.",
        "Use a supported model, or add an entry to src/specprefill_repro/prefill/architectures.py with its test, "
        "as docs/adding-a-model.md says.",
    )


def _other_build(name: str, what: str) -> ReproError:
    return ReproError(
        f"This {name} model is not built as expected: {what}.",
        "The installed mlx_lm builds this model type in another way than the version this package is pinned to.",
        "Install the pinned versions again: rm -r .venv && ./reproduce",
    )


def check_caches(found: Structure, cache: Sequence[Any]) -> None:
    """Check that the caches which a model makes are those that its structure calls for.

    Raises:
        ReproError: another number or kind of caches, or a window of another length.
    """
    name = str(found.text.model_type)
    kinds = tuple(Kind.ATTENTION if hasattr(entry, "keys") else Kind.RECURRENT for entry in cache)
    if kinds != found.caches:
        raise _other_build(name, f"its caches are for {', '.join(kinds)}, its layers are {', '.join(found.caches)}")
    for layer in found.attention:
        # A cache without a limit is a full one; the mask then makes the window.
        limit = None if layer.cache is None else getattr(cache[layer.cache], "max_size", None)
        if limit is not None and limit != layer.window:
            raise _other_build(name, f"layer {layer.index} has a window of {layer.window}, its cache one of {limit}")


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The attention module of every layer that attends, in order.

    Raises:
        ReproError: as `structure`.
    """
    return [layer.module for layer in structure(model).attention]


def rotary_width(rotary: nn.Module) -> int:
    """How many elements of a head a rotary embedding rotates.

    Raises:
        ReproError: a kind of rotary embedding that was never checked.
    """
    name = type(rotary).__name__
    if name not in ROTARY_WIDTHS:
        raise ReproError(
            f"Rotary embedding {name!r} is not supported; supported: {', '.join(ROTARY_WIDTHS)}.",
            "Whether it can rotate each token by its own position was never checked.",
            "Use a supported model, or add it to ROTARY_WIDTHS in src/specprefill_repro/prefill/architectures.py "
            "with its test.",
        )
    return int(getattr(rotary, ROTARY_WIDTHS[name]))


def end_tokens(config: dict[str, Any]) -> frozenset[int]:
    """Ids of the end-of-sequence tokens that config.json names, for itself or for its text part."""
    value = config.get("eos_token_id")
    if value is None:
        value = (config.get("text_config") or {}).get("eos_token_id")
    if value is None:
        return frozenset()
    return frozenset(value) if isinstance(value, list) else frozenset([value])
