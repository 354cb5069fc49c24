"""The model types this package knows, and where each keeps its attention. Anything else is refused, never guessed."""

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import mlx.nn as nn

from specprefill_repro.errors import ReproError


@dataclass(frozen=True)
class Architecture:
    """Names of attributes in mlx_lm's module of that model type."""

    attention: str
    """Of each layer: its attention module."""
    rotary: str
    """Of the attention module: its rotary embedding."""


ARCHITECTURES = {
    "llama": Architecture(attention="self_attn", rotary="rope"),
}


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The attention module of every layer, in order.

    Raises:
        ReproError: the model type is not in the table, or the model is not built as the table says.
    """
    model_type = str(model.model_type)
    known = ARCHITECTURES.get(model_type)
    if known is None:
        raise ReproError(
            f"Model type {model_type!r} is not supported; supported: {', '.join(sorted(ARCHITECTURES))}.",
            "Positions and attention scores were never checked on this architecture, so its numbers could be wrong.",
            "Use a supported model, or add the type to src/specprefill_repro/prefill/architectures.py with its tests.",
        )
    if getattr(model, "args", None) is not None and "sliding_attention" in (
        getattr(model.args, "layer_types", None) or []
    ):
        raise ReproError(
            f"This {model_type} model has sliding-window layers, which are not supported.",
            "Such a layer would count its window in kept tokens instead of original positions.",
            "Use a model with full attention in every layer.",
        )
    modules = [getattr(layer, known.attention, None) for layer in model.layers]
    # `is None`, never truth: an mlx module without parameters is an empty dict, and so false.
    if not modules or any(module is None or getattr(module, known.rotary, None) is None for module in modules):
        raise ReproError(
            f"A layer of this {model_type} model has no {known.attention}.{known.rotary}.",
            "The installed mlx_lm builds this model type in another way than the version this package is pinned to.",
            "Install the pinned versions again: rm -r .venv && ./reproduce",
        )
    return [module for module in modules if module is not None]


def rotary_name(model: nn.Module) -> str:
    """Name of the rotary embedding inside each attention module."""
    return ARCHITECTURES[str(model.model_type)].rotary


def model_code(model: nn.Module) -> ModuleType:
    """The mlx_lm module that defines the model's class; its attention calls a function that it imported by name."""
    return sys.modules[type(model).__module__]


def end_tokens(config: dict[str, Any]) -> frozenset[int]:
    """Ids of the end-of-sequence tokens that config.json names."""
    value = config.get("eos_token_id")
    if value is None:
        return frozenset()
    return frozenset(value) if isinstance(value, list) else frozenset([value])
