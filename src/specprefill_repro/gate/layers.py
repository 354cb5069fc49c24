"""What each layer of a model was given and gave back: seen from outside, whatever the engine says of itself."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.nn as nn

from specprefill_repro.prefill.architectures import structure


@dataclass(frozen=True)
class LayerCall:
    layer: int
    tokens: int
    dtype: Any
    """Of the output."""


@contextmanager
def layer_calls(model: nn.Module) -> Iterator[list[LayerCall]]:
    """Note every call of a layer of the (text) model: index of the layer, tokens of the pass, type of its output."""
    layers = structure(model).text.layers
    index = {id(layer): number for number, layer in enumerate(layers)}
    originals: dict[type, Callable[..., Any]] = {type(layer): type(layer).__call__ for layer in layers}
    calls: list[LayerCall] = []

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
            output = original(self, x, *args, **kwargs)
            if id(self) in index:
                first = output[0] if isinstance(output, tuple) else output
                calls.append(LayerCall(index[id(self)], x.shape[1], first.dtype))
            return output

        return call

    for kind, original in originals.items():
        kind.__call__ = noting(original)  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        for kind, original in originals.items():
            kind.__call__ = original  # type: ignore[method-assign]
