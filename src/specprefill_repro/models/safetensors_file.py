"""Read and write safetensors files tensor by tensor, whatever their dtype, without holding a model in memory.

Format: 8 bytes little-endian length n, n bytes of JSON header, then the data
(https://github.com/huggingface/safetensors, README "Format").
"""

import json
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from specprefill_repro.errors import Exit, ReproError

ITEM_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip

MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class Tensor:
    name: str
    dtype: str
    """As in the header, such as F32."""
    shape: tuple[int, ...]
    read: Callable[[], bytes]
    """Gives the data, row-major and little-endian."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * ITEM_BYTES[self.dtype]


def read_safetensors(path: Path) -> list[Tensor]:
    """Read the header and check it against the length of the file; the data are read when asked for.

    Raises:
        ReproError: not such a file, or a truncated one (exit code VERIFICATION).
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise _not_safetensors(path, "it is too short for its header")
        header_bytes = file.read(length)
    try:
        header = json.loads(header_bytes)
        header.pop("__metadata__", None)
        tensors = [_tensor(path, 8 + length, name, entry) for name, entry in header.items()]
        ranges = sorted(tuple(entry["data_offsets"]) for entry in header.values())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _not_safetensors(path, f"its header is damaged ({error})") from error
    end = 0
    for begin, stop in ranges:
        if begin != end:
            raise _not_safetensors(path, "its tensors overlap or leave gaps")
        end = stop
    if 8 + length + end != size:
        raise _not_safetensors(path, f"it has {size:,} bytes and its header describes {8 + length + end:,}")
    return tensors


def write_safetensors(
    path: Path, tensors: Iterable[Tensor], progress: Callable[[int, int], None] | None = None
) -> None:
    """Write tensors in the order given and flush them to disk.

    `path` must lie in a folder that nobody reads yet: the file is written in place. `progress` is told bytes written
    and bytes in all.

    Raises:
        OSError: as from writing any file.
    """
    tensors = list(tensors)
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    end = 0
    for tensor in tensors:
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [end, end + tensor.nbytes],
        }
        end += tensor.nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # keeps the data aligned
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        done = 0
        for tensor in tensors:
            data = tensor.read()
            if len(data) != tensor.nbytes:
                raise ValueError(f"{tensor.name}: {len(data)} bytes for shape {tensor.shape} of {tensor.dtype}")
            file.write(data)
            done += len(data)
            if progress:
                progress(done, end)
        file.flush()
        os.fsync(file.fileno())


def _tensor(path: Path, data_start: int, name: str, entry: dict[str, object]) -> Tensor:
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in ITEM_BYTES or not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        raise ValueError(f"tensor {name!r}: dtype {dtype!r}")
    if not all(isinstance(number, int) and number >= 0 for number in [*shape, *offsets]):
        raise ValueError(f"tensor {name!r}: sizes that are not whole numbers")
    begin, stop = offsets
    tensor = Tensor(name, str(dtype), tuple(shape), lambda: _read_range(path, data_start + begin, stop - begin))
    if stop - begin != tensor.nbytes:
        raise ValueError(f"tensor {name!r}: {stop - begin} bytes for shape {shape}")
    return tensor


def _read_range(path: Path, start: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(length)


def _not_safetensors(path: Path, how: str) -> ReproError:
    return ReproError(
        f"{path} is not a whole safetensors file: {how}.",
        "It was cut off while it was copied, or it is another kind of file.",
        f"Get it again; look at it with: head -c 300 '{path}'",
        Exit.VERIFICATION,
    )
