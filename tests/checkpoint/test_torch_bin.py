"""What a .bin file holds, read without executing anything in it."""

from __future__ import annotations

import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.checkpoint.torch_bin import MAX_LISTED, TorchBin, describe_pickles, is_dangerous
from tests.conftest import needs
from tests.factories.torch_archives import open_bytes, write_archive
from tests.limited_child import run_limited


def describe(raw: bytes) -> TorchBin | None:
    return describe_pickles(*open_bytes(raw))


def describe_archive(pickled: bytes) -> TorchBin:
    content = describe(write_archive({"data.pkl": pickled}))
    assert content is not None
    return content


class Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def test_names_and_shapes_of_a_real_torch_file(tmp_path: Path) -> None:
    needs("torch")
    import torch

    state = {
        "a.weight": torch.zeros(2, 3, dtype=torch.bfloat16),
        "b": torch.nn.Parameter(torch.ones(4)),
        "c": torch.arange(6).reshape(2, 3).t(),
        "d": torch.zeros(()),
    }
    for name, value in (("plain.bin", state), ("nested.bin", {"state_dict": state, "epoch": 3})):
        torch.save(value, tmp_path / name)
        content = describe((tmp_path / name).read_bytes())
        assert content == TorchBin({key: tuple(tensor.shape) for key, tensor in state.items()})


def test_the_format_before_torch_1_6_is_named_and_its_globals_are_listed(tmp_path: Path) -> None:
    needs("torch")
    import torch

    for value, foreign in (
        ({"a": torch.zeros(2)}, ()),
        ({"a": torch.zeros(2), "b": Call(os.system, "")}, ("posix.system",)),
    ):
        torch.save(value, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
        content = describe((tmp_path / "old.bin").read_bytes())
        assert content == TorchBin({}, foreign, "it is not in the zip format of torch.save")


@pytest.mark.parametrize(
    ("hostile", "name"),
    [
        (pickle.dumps(Call(eval, "open('owned', 'w')")), "builtins.eval"),
        (pickle.dumps(Call(os.system, "touch owned")), "posix.system"),
        (pickle.dumps({"a": Call(open, "owned", "w")}, protocol=4), f"{open.__module__}.open"),
        (b'cbuiltins\nexec\n(S\'open("owned","w")\'\ntR.', "builtins.exec"),
        (b"(S'touch owned'\nios\nsystem\n.", "os.system"),
        (b"ctorch\nload\n(S'x'\ntR.", "torch.load"),
        (b"ctorch\nhub.Storage\n.", "torch.hub.Storage"),
        # The name is put together on the stack, with other texts between and out of the memo.
        (b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x8c\x01x0h\x00h\x01\x93\x8c\x04true\x85R0I1\n.", "os.system"),
    ],
)
def test_nothing_in_a_pickle_is_executed_and_what_it_asks_for_is_listed(
    hostile: bytes, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for content in (describe_archive(hostile), describe(hostile), describe(hostile[:-1] + b"\xff")):
        assert content is not None
        assert content.foreign_globals == (name,)
        assert not content.shapes
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "broken",
    [
        pickle.dumps([1, 2, 3]),
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"",
        b"(" * 100_000,
        b"\x80\x02]q\x00" + b"(l" * 50_000 + b".",
        b"\x80\x02" + b")\x85" * 1 + b"\x85" * 200_000 + b"}q\x00K\x01s.",
        b"\x80\x02Nr\xff\xff\xff\x7f.",
        b"\x80\x02]" + b"\x8b\x00\x00\x00\x01" + b"\x01" * (1 << 24) + b"a.",
    ],
)
def test_a_broken_or_greedy_pickle_is_no_state_dict(broken: bytes) -> None:
    content = describe_archive(broken)
    assert content.unreadable_reason is not None
    assert content.foreign_globals == ()


def test_an_archive_that_torch_does_not_write_is_refused() -> None:
    bomb = describe(write_archive({"data.pkl": b"\0" * (1 << 26)}, method=zipfile.ZIP_DEFLATED))
    assert bomb == TorchBin({}, (), "its records are compressed, which torch.save never does", is_listed=False)
    broken = describe(b"PK\x03\x04" + b"\0" * 50)
    assert broken == TorchBin({}, (), "it is not a readable zip archive (BadZipFile)", is_listed=False)
    assert describe(write_archive({"other": b"."})) == TorchBin({}, (), "it holds no data.pkl", is_listed=False)


def test_what_torch_would_run_in_an_archive_that_it_does_not_write_is_listed() -> None:
    """torch.load of 2.13 inflates a compressed data.pkl, and runs it."""
    evil = pickle.dumps(Call(os.system, "touch owned"), protocol=2)
    content = describe(write_archive({"data.pkl": evil, "version": b"3"}, method=zipfile.ZIP_DEFLATED))
    reason = "its records are compressed, which torch.save never does"
    assert content == TorchBin({}, ("posix.system",), reason)
    content = describe(write_archive({"data.pkl": pickle.dumps({}), "other/data.pkl": evil}))
    assert content == TorchBin({}, ("posix.system",), "it holds several data.pkl")


def test_a_pickle_behind_one_that_is_too_long_to_list_is_not_passed() -> None:
    long, evil = pickle.dumps(bytes(MAX_LISTED - 24)), pickle.dumps(Call(os.system, "touch owned"), protocol=2)
    content = describe(write_archive({"data.pkl": long, "other/data.pkl": evil}, method=zipfile.ZIP_DEFLATED))
    assert content == TorchBin({}, (), "it holds several data.pkl", is_listed=False)


def split_archive(records: dict[str, bytes]) -> tuple[bytes, bytes]:
    """The records of an archive, and its directory."""
    raw = write_archive(records)
    size, begin = struct.unpack("<II", raw[-10:-2])
    return raw[:begin], raw[begin : begin + size]


def move_entries(directory: bytes, by: int) -> bytes:
    moved, at = bytearray(directory), 0
    while (at := moved.find(b"PK\x01\x02", at)) >= 0:
        offset = int.from_bytes(moved[at + 42 : at + 46], "little")
        moved[at + 42 : at + 46] = (offset + by).to_bytes(4, "little")
        at += 4
    return bytes(moved)


def test_a_file_with_two_directories_is_not_read_by_the_one_that_torch_does_not_read() -> None:
    """torch.load of 2.13 runs the first pickle; Python's zipfile, and so an earlier scan, finds only the second."""
    evil = pickle.dumps(Call(os.system, "touch owned"), protocol=2)
    records, directory = split_archive({"data.pkl": evil, "version": b"3"})
    others, other = split_archive({"data.pkl": pickle.dumps({}), "version": b"3"})
    assert len(directory) == len(other)
    # Python moves all offsets by what stands before the second archive's directory, less what its end states.
    other = move_entries(other, len(records) + len(directory) - (len(directory) + len(others)))
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 2, 2, len(other), len(records), 0)
    content = describe(records + directory + others + other + end)
    assert content is not None
    assert content.foreign_globals == ("posix.system",)
    assert not content.is_listed
    assert content.unreadable_reason == "its directory does not lie where its end says, and PyTorch reads another one"


def test_records_that_inflate_to_nothing_take_no_time() -> None:
    """A megabyte whose directory names one long record of empty blocks nine thousand times once took eight seconds."""
    blocks, name, number = b"\0\0\0\xff\xff" * 100_000 + b"\x03\0", b"a/data.pkl", 9_000
    sizes = struct.pack("<III", 0, len(blocks), 0)
    record = b"PK\x03\x04" + struct.pack("<HHHHH", 20, 0, 8, 0, 0) + sizes + struct.pack("<HH", len(name), 0) + name
    entry = (
        b"PK\x01\x02"
        + struct.pack("<HHHHHH", 20, 20, 0, 8, 0, 0)
        + sizes
        + struct.pack("<H", len(name))
        + bytes(16)
        + name
    )
    begin = len(record) + len(blocks)
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, number, number, number * len(entry), begin, 0)
    raw = record + blocks + entry * number + end
    outcome = run_limited(lambda: repr(describe(raw)), seconds=2)
    assert outcome.fault == ""
    assert "is_listed=False" in outcome.answer


def test_a_pickle_that_hides_its_end_behind_a_million_opcodes_is_not_passed() -> None:
    hidden = b"\x80\x04" + b"N0" * 600_000 + b"cos\nsystem\n)R."
    content = describe(hidden)
    assert content == TorchBin({}, (), "it is not in the zip format of torch.save", is_listed=False)


@pytest.mark.parametrize("raw", [b"", b"no pickle at all", b"GGUF\x03\0\0\0", b"hello world\n", b"\0" * 100])
def test_a_file_that_holds_no_pickle(raw: bytes) -> None:
    assert describe(raw) is None


@pytest.mark.parametrize(
    ("name", "dangerous"),
    [
        ("os.system", True),
        ("nt.system", True),
        ("__builtin__.eval", True),
        ("subprocess.Popen", True),
        ("runpy._run_code", True),
        ("operator.attrgetter", True),
        ("torch.hub.load", True),
        ("numpy.testing._private.utils.runstring", True),
        ("argparse.Namespace", False),
        ("__builtin__.set", False),
        ("pathlib.PosixPath", False),
        ("trl.trainer.grpo_config.GRPOConfig", False),
        ("torch.optim.lr_scheduler.LambdaLR", False),
        ("oscar.system", False),
    ],
)
def test_dangerous_globals(name: str, dangerous: bool) -> None:
    assert is_dangerous(name) is dangerous
