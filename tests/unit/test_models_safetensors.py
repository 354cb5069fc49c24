"""Our reader and writer of safetensors against the safetensors library."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.models.safetensors_file import Tensor, read_safetensors, write_safetensors

DTYPES: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "U32": np.uint32, "I64": np.int64, "U8": np.uint8}

arrays = st.dictionaries(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12).filter(
        lambda name: name != "__metadata__"
    ),
    st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 4), max_size=3)),
    max_size=5,
)


def tensor(name: str, dtype: str, array: np.ndarray[Any, Any]) -> Tensor:
    return Tensor(name, dtype, array.shape, array.tobytes)


@given(arrays)
def test_what_we_write_the_library_reads(tmp_path_factory: pytest.TempPathFactory, spec: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("st") / "model.safetensors"
    random = np.random.default_rng(0)
    made = {name: random.integers(0, 9, shape).astype(DTYPES[dtype]) for name, (dtype, shape) in spec.items()}
    write_safetensors(path, [tensor(name, spec[name][0], array) for name, array in made.items()])
    read = load_file(path)
    assert read.keys() == made.keys()
    for name, array in made.items():
        np.testing.assert_array_equal(read[name], array, strict=True)


def test_what_the_library_writes_we_read(tmp_path: Path) -> None:
    made = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float16)}
    save_file(made, tmp_path / "x.safetensors", metadata={"format": "pt"})
    read = {one.name: one for one in read_safetensors(tmp_path / "x.safetensors")}
    assert (read["a.weight"].dtype, read["a.weight"].shape) == ("F32", (2, 3))
    assert read["a.weight"].read() == made["a.weight"].tobytes()
    assert read["b"].read() == made["b"].tobytes()


@pytest.mark.parametrize("keep", [0, 4, 8, 40, -1, -16])
def test_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": np.ones((8, 8), np.float32)}, path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ReproError, match="not a whole safetensors file") as caught:
        read_safetensors(path)
    assert caught.value.exit_code == Exit.VERIFICATION


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{",
        b'{"a": 1}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}}',
        b'{"a": {"dtype": "F32", "shape": [1e0], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}',
        b"[" * 100_000,
    ],
)
def test_hostile_header_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(ReproError, match="not a whole safetensors file"):
        read_safetensors(path)


def test_wrong_number_of_bytes_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a: 3 bytes"):
        write_safetensors(tmp_path / "x.safetensors", [Tensor("a", "F32", (1,), lambda: b"abc")])
