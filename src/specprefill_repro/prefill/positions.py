"""Reading tokens at positions of our choice.

`mx.fast.rope` takes one offset for each row of the batch. With the token axis moved to the batch axis, the model's own
rotary embedding, of whatever kind, therefore rotates each token by its own position: no formula of ours, same kernel,
same dtype. (Every public MLX port writes the rotation again, and each got something wrong; docs/design.md, section 4.)
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.prefill.architectures import attention_modules, check_caches, rotary_width, structure
from specprefill_repro.prefill.chunked import new_cache
from specprefill_repro.prefill.windows import Positions, WindowCache


@dataclass(eq=False)
class PositionedRotary:
    """Stands in for an attention module's rotary embedding, and notes the positions that it was really given."""

    rotary: nn.Module
    positions: Positions
    seen: list[mx.array] = field(default_factory=list)

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        """Rotate x, shape (1, heads, tokens, head size); `offset`, which counts cache entries, is not used."""
        current = self.positions.of(x.shape[2])
        self.seen.append(current)
        if x.shape[2] == 1:
            # While decoding: what the model itself would compute, with another number.
            return self.rotary(x, offset=self.positions.values[0])
        return self.rotary(x.transpose(2, 1, 0, 3), offset=current).transpose(2, 1, 0, 3)


class PositionedModel:
    """A model that reads each token at a position of our choice: set `positions`, then call it as the model itself.

    The model is changed only while a call runs, so several of these may take turns on one model, and an error in a
    call leaves nothing behind. What depends on a position is: the rotary embeddings, the windows of sliding-window
    layers (see windows.py), and in Ministral 3 the scale of the queries. A recurrent layer has no positions; it reads
    the tokens that it is given as if nothing lay between them.

    Args:
        prompt_tokens: length of the whole prompt; the base of a dynamic NTK embedding depends on it.
        windows: what sliding windows count: original positions, or kept tokens, as mlx_lm's caches and the ports do.

    Raises:
        ReproError: the model is not supported.
    """

    def __init__(
        self, model: nn.Module, prompt_tokens: int, windows: Literal["positions", "kept"] = "positions"
    ) -> None:
        self.model = model
        self.windows = windows
        self.positions = Positions()
        self._structure = structure(model)
        self._modules = self._structure.rotary_modules
        self._originals = [_rotary(module, self._structure.architecture.rotary) for module in self._modules]
        self.rotaries = [
            PositionedRotary(rotary=_fixed(original, prompt_tokens), positions=self.positions)
            for original in self._originals
        ]

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        """Logits of `tokens`, shape (1, tokens): (1, tokens, vocabulary)."""
        with self._installed():
            return self.model(tokens, cache=cache)

    def make_cache(self) -> list[Any]:
        """An empty cache: the model's own, but for sliding windows, which count original positions by default."""
        cache = new_cache(self.model)
        check_caches(self._structure, cache)
        if self.windows == "kept":
            return cache
        for layer in self._structure.attention:
            if layer.window is not None and layer.cache is not None:
                cache[layer.cache] = WindowCache(layer.window, self.positions)
        return cache

    @property
    def largest_window(self) -> int | None:
        """Of the sliding-window layers; None when there are none."""
        return max((layer.window for layer in self._structure.attention if layer.window is not None), default=None)

    @contextmanager
    def _installed(self) -> Iterator[None]:
        rotary, scale = self._structure.architecture.rotary, self._structure.architecture.query_scale
        code = self._structure.code
        original_scale = None if scale is None else getattr(code, scale)
        try:
            for module, stand_in in zip(self._modules, self.rotaries, strict=True):
                setattr(module, str(rotary), stand_in)
            if original_scale is not None:
                setattr(code, str(scale), self._scale_by_position(original_scale))
            yield
        finally:
            for module, original in zip(self._modules, self._originals, strict=True):
                setattr(module, str(rotary), original)
            if original_scale is not None:
                setattr(code, str(scale), original_scale)

    def _scale_by_position(self, original: Any) -> Any:
        """The model's own function, told one position for each row of a batch, as with `mx.fast.rope`."""

        def scale(size: int, offset: Any, *args: Any) -> mx.array:
            current = self.positions.of(size)
            if size == 1:
                return original(1, self.positions.values[0], *args)
            return original(1, current, *args).reshape(size, 1)

        return scale


def _rotary(module: nn.Module, name: str | None) -> nn.Module:
    rotary = getattr(module, str(name))
    rotary_width(rotary)  # Refuses a kind that was never checked.
    return rotary


def _fixed(rotary: nn.Module, prompt_tokens: int) -> nn.Module:
    """The embedding itself; for dynamic NTK scaling a plain one with the base for a prompt of that length.

    mlx_lm chooses the base anew for every pass, from the cache entries so far, so that keys of one prompt are rotated
    with different bases. Here one base, that of the whole prompt (same formula), serves prompt and decoding.
    """
    if type(rotary).__name__ != "DynamicNTKScalingRoPE":
        return rotary
    length = max(prompt_tokens, rotary.max_position_embeddings)
    stretch = rotary.factor * length / rotary.max_position_embeddings - (rotary.factor - 1)
    base = rotary.base * stretch ** (rotary.dims / (rotary.dims - 2))
    return nn.RoPE(rotary.dims, traditional=rotary.traditional, base=base)


def rotary_is_original(model: nn.Module) -> bool:
    """True when no attention module holds a stand-in."""
    return not any(
        isinstance(value, PositionedRotary) for module in attention_modules(model) for value in vars(module).values()
    )


def check_vector_offsets(model: nn.Module) -> float:
    """Prove on the device in use that a vector of offsets does what single offsets do, for every rotary embedding.

    Returns:
        The largest difference between the two ways, over a few positions; 0.0 on a device that is right, and for a
        model without rotary embeddings.

    Raises:
        ReproError: they differ (an older CUDA kernel reads only the first offset).
    """
    found = structure(model)
    differences = [
        _vector_offsets_difference(_fixed(_rotary(module, found.architecture.rotary), 0), [0, 1, 7, 100, 1023])
        for module in found.rotary_modules
    ]
    # What is no number is no small one.
    wrong = [difference for difference in differences if not difference <= 1e-5]
    if wrong:
        raise ReproError(
            f"This device rotates a vector of positions wrongly (difference {wrong[0]:.3g}).",
            "Its MLX kernel reads only the first offset, so kept tokens would get wrong positions without any error.",
            "Use a newer MLX: change its version in envs/pipeline.in, then envs/lock pipeline && ./reproduce",
            Exit.ENVIRONMENT,
        )
    return max(differences, default=0.0)


def _vector_offsets_difference(rotary: nn.Module, values: Sequence[int]) -> float:
    x = mx.random.normal((1, 2, len(values), rotary_width(rotary)), key=mx.random.key(0))
    with_vector = rotary(x.transpose(2, 1, 0, 3), offset=mx.array(values)).transpose(2, 1, 0, 3)
    one_by_one = mx.concatenate([rotary(x[:, :, i : i + 1], offset=value) for i, value in enumerate(values)], axis=2)
    difference: float = mx.abs(with_vector - one_by_one).max().item()
    return difference
