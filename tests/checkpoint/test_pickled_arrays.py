"""Arrays that numpy pickled, of every order of axes and in every protocol, are read as numpy reads them."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from ckptcheck.checkpoint.torch_file import read_torch_file
from ckptcheck.errors import CkptcheckError

ROWS = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
FROZEN = np.arange(5)
FROZEN.flags.writeable = False
ARRAYS = {
    "rows": ROWS,
    "columns": np.asfortranarray(ROWS),
    "axes exchanged": ROWS.transpose(1, 0, 2),
    "every second": ROWS[:, ::2],
    "backwards": ROWS[::-1],
    "read only": FROZEN,
    "empty": np.zeros((0, 3)),
    "one number": np.array(1.5),
    "big-endian": np.arange(3, dtype=">i4"),
    "half": np.arange(3, dtype=np.float16),
    "truth": np.array([True, False]),
}


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_read_as_numpy_wrote_it(name: str, protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps({"a": ARRAYS[name]}, protocol))
    found = read_torch_file(path)["a"]
    assert found.dtype == ARRAYS[name].dtype
    assert found.shape == ARRAYS[name].shape
    assert (found == ARRAYS[name]).all()


@pytest.mark.parametrize("protocol", range(2, 6))
def test_an_array_of_objects_is_a_list(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps({"a": np.array(["x", {"y": 1}], object)}, protocol))
    assert read_torch_file(path)["a"] == ["x", {"y": 1}]


FROM_BUFFER = b"cnumpy._core.numeric\n_frombuffer\n"
F4 = b"cnumpy\ndtype\n\x8c\x02f4\x85R"
EIGHT = b"\x96" + (8).to_bytes(8, "little") + b"\0" * 8


@pytest.mark.parametrize(
    "arguments",
    [
        b"(" + EIGHT + b"t",
        b"(" + EIGHT + F4 + b"K\x05\x85\x8c\x01Ct",
        b"(" + EIGHT + F4 + b"K\x02\x85\x8c\x01Xt",
        b"(" + EIGHT + F4 + b"K\x02\x85]t",
        b"(" + EIGHT + F4 + b"K\x02\x85\x8c\x01KK\x07\x85t",
        b"(" + EIGHT + b"\x8c\x02f4K\x02\x85\x8c\x01Ct",
        b"(]" + F4 + b"K\x02\x85\x8c\x01Ct",
        b"(" + EIGHT + F4 + b"\x8a\x08" + b"\xff" * 7 + b"\x7f\x85\x8c\x01Ct",
    ],
)
def test_a_buffer_that_is_no_array_is_a_sentence(arguments: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(b"\x80\x05" + FROM_BUFFER + arguments + b"R.")
    with pytest.raises(CkptcheckError, match="an array is not laid out as numpy does it"):
        read_torch_file(path)


def test_a_bytearray_that_is_cut_off_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(b"\x80\x05\x96" + (1 << 62).to_bytes(8, "little") + b"abc.")
    with pytest.raises(CkptcheckError, match="it ends before it is complete"):
        read_torch_file(path)
