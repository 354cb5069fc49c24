"""Weights of a model folder as float64 NumPy arrays, 16-bit and quantised ones included; nothing of mlx is used."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specprefill_repro.models.safetensors_file import Tensor, read_safetensors

Array = NDArray[np.float64]

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "U32": "<u4"}
QUANTISED_BITS = (2, 4, 8)
"""Widths whose elements do not straddle 32-bit words."""


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
        scales = name.removesuffix("weight") + "scales"
        if not name.endswith("weight") or scales not in self._tensors:
            return _values(self._tensors[name])
        return dequantise(
            _values(self._tensors[name]),
            _values(self._tensors[scales]),
            _values(self._tensors[name.removesuffix("weight") + "biases"]),
            self._group(name.removesuffix(".weight")),
        )

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


def _values(tensor: Tensor) -> Any:
    raw = np.frombuffer(tensor.read(), DTYPES[tensor.dtype]).reshape(tensor.shape)
    if tensor.dtype == "U32":
        return raw
    if tensor.dtype == "BF16":
        # A bfloat16 is the upper half of a float32.
        return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return raw.astype(np.float64)
