"""Dumps and rollouts that were made to do harm: one sentence each, in little time and memory."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ckptcheck.checkpoint.torch_file import read_torch_file, read_torch_file_bytes
from ckptcheck.errors import CkptcheckError
from tests.factories.dcp import Call, Global, Raw, write_opcodes, write_pickle
from tests.factories.torch_archives import write_archive, write_tensor_pickle

LATIN = "a" * 100_000
ENCODED = b"c_codecs\nencode\nh\x00h\x01\x86R"
NUMPY = Global("numpy.core.multiarray", "_reconstruct")


def numpy_array(kind: str, shape: tuple[int, ...]) -> bytes:
    dtype = Call(Global("numpy", "dtype"), (kind, False, True))
    state = write_opcodes((1, shape))[:-1] + write_opcodes(dtype) + write_opcodes(False) + b"C\x08" + bytes(8) + b"t"
    made = write_opcodes(Call(NUMPY, (Global("numpy", "ndarray"), (0,), "b")))
    return b"\x80\x04" + made + state + b"b."


PICKLES = {
    "bytes spelled again and again": b"\x80\x04"
    + write_opcodes(LATIN)
    + b"\x94"
    + write_opcodes("latin1")
    + b"\x94]("
    + ENCODED * 1000
    + b"e\x87.",
    "a dtype that is a program": numpy_array("(" * 500, (1,)),
    "a dtype of many fields": numpy_array("f8,f8", (1,)),
    "a shape beyond all": numpy_array("f8", (1 << 70,)),
    "lists that unfold": b"\x80\x04]\x94"
    + b"".join(b"](" + (b"h" + bytes([level])) * 10 + b"e\x94" for level in range(40))
    + b"t."[1:],
}
ARCHIVES = {
    "no element along 2^61 rows": write_tensor_pickle("FloatStorage", (0,), (1,)).replace(
        b"(" + write_opcodes(0) + b"t", b"(" + write_opcodes(0) + write_opcodes(1 << 61) + b"t", 1
    ),
    "a thousand views of one storage": write_pickle(
        [Raw(write_tensor_pickle("FloatStorage", (25_000,), (1,))[2:-1]) for _ in range(1000)]
    ),
}


@pytest.mark.parametrize("name", [*PICKLES, *ARCHIVES])
def test_it_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    raw = PICKLES.get(name) or write_archive({"data.pkl": ARCHIVES[name], "data/0": bytes(100_000)})
    (tmp_path / "dump.pt").write_bytes(raw)
    begun = time.process_time()
    with pytest.raises(CkptcheckError, match="cannot be read"):
        read_torch_file(tmp_path / "dump.pt")
    assert time.process_time() - begun < 5


def test_what_is_embedded_is_refused_in_a_sentence() -> None:
    raw = write_archive({"data.pkl": ARCHIVES["a thousand views of one storage"], "data/0": bytes(100_000)})
    with pytest.raises(CkptcheckError, match="cannot be read"):
        read_torch_file_bytes(raw)


def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "dump.pt")
    with pytest.raises(CkptcheckError, match="pipe"):
        read_torch_file(tmp_path / "dump.pt")


def test_a_link_that_the_user_names_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real.pt").write_bytes(write_pickle({"a": 1}))
    (tmp_path / "dump.pt").symlink_to("real.pt")
    assert read_torch_file(tmp_path / "dump.pt") == {"a": 1}
