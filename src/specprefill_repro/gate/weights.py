"""Weights of a model folder as float64 NumPy arrays, 16-bit and quantised ones included; nothing of mlx is used."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specprefill_repro.models.safetensors_file import Tensor, read_safetensors

Array = NDArray[np.float64]

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "U32": "<u4"}
QUANTISED_BITS = (2, 4, 8)
"""Widths whose elements do not straddle 32-bit words."""

BLOCK = 1 << 25
"""Elements of a matrix that are in memory as float64 at a time: 256 MiB."""


class Weights:
    """Looks tensors up by name; each is read when asked for."""

    def __init__(self, folder: Path) -> None:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self._quantization: dict[str, Any] = config.get("quantization") or {}
        self._tensors = {
            tensor.name: tensor
            for path in sorted(folder.glob("model*.safetensors"))
            for tensor in read_safetensors(path)
        }

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> Array:
        """A tensor, dequantised where it is quantised."""
        return self._rows(name)(slice(None))

    def rows(self, name: str, which: Sequence[int]) -> Array:
        """Some rows of a matrix: (rows asked for, columns)."""
        return self._rows(name)(list(which))

    def blocks(self, name: str) -> Iterator[Array]:
        """A matrix in blocks of rows, so that no more than `BLOCK` elements are in memory as float64 at a time."""
        count, columns = self._tensors[name].shape[0], self.elements(name) // self._tensors[name].shape[0]
        rows, step = self._rows(name), max(1, BLOCK // columns)
        for start in range(0, count, step):
            yield rows(slice(start, start + step))

    def elements(self, name: str) -> int:
        """How many numbers a tensor stands for."""
        scales = name.removesuffix("weight") + "scales"
        if not name.endswith("weight") or scales not in self._tensors:
            return self._tensors[name].size
        return self._tensors[scales].size * self._group(name.removesuffix(".weight"))

    def names(self, prefix: str) -> list[str]:
        """Of the tensors whose names begin so, those that stand for numbers of their own."""
        return [name for name in self._tensors if name.startswith(prefix) and not name.endswith((".scales", ".biases"))]

    def _rows(self, name: str) -> Callable[[Any], Array]:
        """Reads a tensor once; then gives the rows asked for as float64."""
        raw, scales = _raw(self._tensors[name]), name.removesuffix("weight") + "scales"
        if not name.endswith("weight") or scales not in self._tensors:
            return lambda which: _values(raw[which], self._tensors[name].dtype)
        biases = name.removesuffix("weight") + "biases"
        raw_scales, raw_biases = _raw(self._tensors[scales]), _raw(self._tensors[biases])
        group = self._group(name.removesuffix(".weight"))

        def dequantised(which: Any) -> Array:
            return dequantise(
                raw[which],
                _values(raw_scales[which], self._tensors[scales].dtype),
                _values(raw_biases[which], self._tensors[biases].dtype),
                group,
            )

        return dequantised

    def not_covered(self) -> Iterator[str]:
        """Why tensors can't be read: other kinds of quantisation than `dequantise` knows."""
        for name in self._tensors:
            if name.endswith(".scales"):
                layer = name.removesuffix(".scales")
                if f"{layer}.biases" not in self._tensors:
                    yield f"{layer} is quantised without biases (not mlx's affine mode)"
                elif (bits := self._bits(layer)) not in QUANTISED_BITS:
                    yield f"{layer} is quantised with {bits} bits"

    def _group(self, layer: str) -> int:
        own = self._quantization.get(layer)
        return int((own if isinstance(own, dict) else self._quantization)["group_size"])

    def _bits(self, layer: str) -> float:
        packed, scales = self._tensors[f"{layer}.weight"].shape[-1], self._tensors[f"{layer}.scales"].shape[-1]
        return packed * 32 / (scales * self._group(layer))


def dequantise(packed: NDArray[np.uint32], scales: Array, biases: Array, group: int) -> Array:
    """Weights of mlx's affine quantisation: scale * q + bias, with one scale and bias for `group` elements of a row.

    Args:
        packed: uint32, shape (rows, columns * bits / 32); the first element is in the lowest bits.
        scales: (rows, columns / group), as `biases`.

    Returns:
        (rows, columns)
    """
    columns = scales.shape[-1] * group
    bits = packed.shape[-1] * 32 // columns
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    elements = (packed[..., None] >> shifts) & np.uint32(2**bits - 1)
    elements = elements.reshape(*packed.shape[:-1], columns).astype(np.float64)
    return np.asarray(elements * np.repeat(scales, group, axis=-1) + np.repeat(biases, group, axis=-1))


def _raw(tensor: Tensor) -> NDArray[Any]:
    return np.frombuffer(tensor.read(), DTYPES[tensor.dtype]).reshape(tensor.shape)


def _values(raw: NDArray[Any], dtype: str) -> Array:
    if dtype == "BF16":
        # A bfloat16 is the upper half of a float32.
        return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return raw.astype(np.float64)
