"""Reading tokens at positions of our choice.

`mx.fast.rope` takes one offset for each row of the batch. With the token axis moved to the batch axis, the model's own
rotary embedding, of whatever kind, therefore rotates each token by its own position: no formula of ours, same kernel,
same dtype. (Every public MLX port writes the rotation again, and each got something wrong; docs/design.md, section 4.)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import mlx.core as mx
import mlx.nn as nn

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.prefill.architectures import attention_modules, rotary_name


@dataclass
class Positions:
    """Original positions of the tokens of the next forward pass, set before each one."""

    current: mx.array | None = None
    """int32, shape (tokens of the pass,)."""

    def set(self, values: list[int]) -> None:
        self.current = mx.array(values, dtype=mx.int32)


@dataclass(eq=False)
class PositionedRotary:
    """Stands in for an attention module's rotary embedding, and notes the positions that it was really given."""

    rotary: nn.Module
    positions: Positions
    seen: list[mx.array] = field(default_factory=list)

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        """Rotate x, shape (1, heads, tokens, head size); `offset`, which counts cache entries, is not used."""
        current = self.positions.current
        if current is None or current.shape[0] != x.shape[2]:
            raise RuntimeError(f"no positions were set for this pass of {x.shape[2]} tokens")
        self.seen.append(current)
        return self.rotary(x.transpose(2, 1, 0, 3), offset=current).transpose(2, 1, 0, 3)


@contextmanager
def positioned(model: nn.Module) -> Iterator[tuple[Positions, list[PositionedRotary]]]:
    """Replace the rotary embedding of every attention module; put the originals back on exit, also after an error."""
    positions = Positions()
    modules, name = attention_modules(model), rotary_name(model)
    originals = [getattr(module, name) for module in modules]
    wrappers = [PositionedRotary(rotary=original, positions=positions) for original in originals]
    try:
        for module, wrapper in zip(modules, wrappers, strict=True):
            setattr(module, name, wrapper)
        yield positions, wrappers
    finally:
        for module, original in zip(modules, originals, strict=True):
            setattr(module, name, original)


def rotary_is_original(model: nn.Module) -> bool:
    """True when no attention module holds a stand-in."""
    name = rotary_name(model)
    return not any(isinstance(getattr(module, name), PositionedRotary) for module in attention_modules(model))


def check_vector_offsets(model: nn.Module) -> float:
    """Prove on the device in use that a vector of offsets does what single offsets do.

    Returns:
        The largest difference between the two ways, over a few positions; 0.0 on a device that is right.

    Raises:
        ReproError: they differ (an older CUDA kernel reads only the first offset).
    """
    module, name = attention_modules(model)[0], rotary_name(model)
    rotary = getattr(module, name)
    size = int(module.k_proj.weight.shape[0]) // int(module.n_kv_heads)
    values = [0, 1, 7, 100, 1023]
    x = mx.random.normal((1, 2, len(values), size), key=mx.random.key(0))
    with_vector = rotary(x.transpose(2, 1, 0, 3), offset=mx.array(values)).transpose(2, 1, 0, 3)
    one_by_one = mx.concatenate([rotary(x[:, :, i : i + 1], offset=value) for i, value in enumerate(values)], axis=2)
    difference: float = mx.abs(with_vector - one_by_one).max().item()
    if difference > 1e-5:
        raise ReproError(
            f"This device rotates a vector of positions wrongly (difference {difference:.3g}).",
            "Its MLX kernel reads only the first offset, so kept tokens would get wrong positions without any error.",
            "Use a newer MLX, or run on the CPU: MLX_DEVICE=cpu ./reproduce",
            Exit.ENVIRONMENT,
        )
    return difference
