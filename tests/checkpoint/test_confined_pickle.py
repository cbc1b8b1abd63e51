"""A pickle that a confined process read is the same as one that this process reads, and whatever it holds comes to an end."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.checkpoint import confined_pickle, confinement
from ckptcheck.checkpoint.confined_pickle import decode_tree, encode_tree, unpickle_confined
from ckptcheck.checkpoint.confinement import ConfinedReader
from ckptcheck.checkpoint.megatron.stubs import load_persistent, stub_for
from ckptcheck.checkpoint.torch_bin import describe_pickles
from ckptcheck.checkpoint.torch_file import read_torch_file
from ckptcheck.checkpoint.unpickle import ObjectStub, Unpickled, UnreadablePickle, unpickle
from tests.factories.torch_archives import open_bytes, write_archive
from tests.paths import DATA

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere nothing is forked")


@pytest.fixture(autouse=True)
def no_reader_is_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins without a process that reads short pickles: one that runs already knows nothing of what is patched."""
    readers: list[ConfinedReader] = []

    def make_reader(*arguments: Any, **limits: int) -> ConfinedReader:
        readers.append(ConfinedReader(*arguments, **limits))
        return readers[-1]

    monkeypatch.setattr(confined_pickle, "ConfinedReader", make_reader)
    confined_pickle._find_reader.cache_clear()
    confined_pickle._read_short.cache_clear()
    yield
    confined_pickle._find_reader.cache_clear()
    confined_pickle._read_short.cache_clear()
    for reader in readers:
        reader.close()


ROLLOUTS = [path for path in sorted((DATA / "rollouts").iterdir()) if path.suffix in (".pt", ".pkl")]
INNER: list[Any] = [1, "é", "\ud800", 1 << 200, -(1 << 63), b"x" * 200, "y" * 200, 1e300, None, True]
VALUES: dict[str, Any] = {
    "plain values": INNER,
    "a list that stands twice": {"a": INNER, "b": INNER, (1, (2, "k")): {3, (4, 5)}},
    "tuples in tuples": ((), ((1,), [((),)]), frozenset((1, "a"))),
    "a number": 7,
    "many numbers": [list(range(5000)), [0.5] * 3000],
    "nested deep": eval("[" * 90 + "]" * 90),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_the_same(name: str) -> None:
    raw = pickle.dumps(VALUES[name], 4)
    assert unpickle_confined(raw, stub_for).value == VALUES[name] == unpickle(raw, stub_for).value


def test_bytes_that_can_change_come_back_the_same() -> None:
    value = [bytearray(b"abc"), bytearray(300), {"a": bytearray()}]
    raw = pickle.dumps(value, 5)
    assert unpickle_confined(raw, stub_for).value == value == unpickle(raw, stub_for).value


def test_what_is_shared_stays_shared_and_what_holds_itself_does() -> None:
    inner: list[Any] = []
    inner.append((inner, {"me": inner}))
    found = unpickle_confined(pickle.dumps([inner, inner], 4), stub_for).value
    assert found[0] is found[1]
    assert found[0][0][0] is found[0]
    assert found[0][0][1]["me"] is found[0]


def test_an_object_keeps_its_name_its_arguments_and_its_state() -> None:
    raw = b"\x80\x04cargparse\nNamespace\n)\x81}\x8c\x01aK\x05sb."
    found = unpickle_confined(raw, stub_for).value
    assert isinstance(found, ObjectStub)
    assert (found.name, found.arguments, found.state) == ("argparse.Namespace", (), {"a": 5})
    assert unpickle_confined(b"\x80\x04cos\nsystem\n.", stub_for).unexpected_globals == ("os.system",)


@pytest.mark.parametrize("path", ROLLOUTS, ids=lambda path: path.name)
def test_rollouts_are_read_the_same_with_and_without(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    confined = read_torch_file(path)
    confined_pickle._read_short.cache_clear()
    monkeypatch.setattr(confinement, "can_confine", lambda: False)
    assert _show(read_torch_file(path)) == _show(confined)


def _show(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, _show(entry)) for key, entry in value.items()]
    if isinstance(value, (list, tuple)):
        return [_show(entry) for entry in value]
    if isinstance(value, ObjectStub):
        return value.name, _show(value.arguments), _show(value.state)
    if isinstance(value, type):
        return value.name  # type: ignore[attr-defined]
    return (value.dtype, value.shape, value.tobytes()) if hasattr(value, "tobytes") else value


@pytest.mark.parametrize("door", ["an archive", "a pickle"])
def test_this_process_never_runs_the_unpickler(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = pickle.dumps({"w": [1, 2, door]}, 4)
    seen: list[bool] = []
    real = confined_pickle.unpickle

    def watch(*arguments: Any) -> Unpickled:
        seen.append(True)
        return real(*arguments)

    monkeypatch.setattr(confined_pickle, "unpickle", watch)
    described = describe_pickles(*open_bytes(write_archive({"data.pkl": raw}) if door == "an archive" else raw))
    assert described is not None
    assert described.unreadable_reason is None
    assert seen == []


ENDS = {
    "a crash": "it brought a process down",
    "a hang": "it came to no end within 1 seconds",
    "memory": "it takes too much memory",
    "an answer that cannot be written": "it describes what no checkpoint holds",
}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.slow
def test_what_ends_the_reader_is_a_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Unpickled:
        if name == "a crash":
            import ctypes
            import faulthandler

            faulthandler.disable()
            ctypes.string_at(0)
        if name == "memory":
            bytearray(1 << 32)
        while name == "a hang":
            pass
        raise LookupError

    monkeypatch.setattr(confined_pickle, "unpickle", fail)
    monkeypatch.setattr(confined_pickle, "LEAST_SECONDS", 1)
    with pytest.raises(UnreadablePickle, match=ENDS[name]):
        unpickle_confined(b"\x80\x04" + name.encode(), stub_for, load_persistent)


ANSWERS = {
    "nothing": b"",
    "no tree": b"\x90",
    "a node that is not there": encode_tree(Unpickled([[1]])).replace(b"\x91\x01", b"\x91\x7f"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UnreadablePickle):
        decode_tree(ANSWERS[name])


def test_keys_of_an_answer_that_unfold_without_end_are_refused() -> None:
    key: tuple[Any, ...] = ()
    for _ in range(40):
        key = (key, key)
    with pytest.raises(UnreadablePickle, match="take long to compare"):
        decode_tree(encode_tree(Unpickled(_Pairs(key))))


class _Pairs(dict[Any, Any]):
    """A dictionary whose key is not hashed: hashing it would take for ever."""

    def __init__(self, key: Any) -> None:
        self._pairs = [(key, 1)]

    def items(self) -> Any:
        return self._pairs


def test_short_pickles_are_read_by_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    forks: list[int] = []
    real = os.fork
    monkeypatch.setattr(os, "fork", lambda: forks.append(real()) or forks[-1])
    for number in range(50):
        assert unpickle_confined(pickle.dumps(["one of many", number], 4), stub_for).value == ["one of many", number]
    assert len(forks) == 1


def test_what_ends_that_process_is_said_of_its_pickle_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    real = confined_pickle.unpickle

    def end_at_the_third(raw: bytes, *rest: Any) -> Unpickled:
        if b"third" in raw:
            os._exit(1)
        return real(raw, *rest)

    monkeypatch.setattr(confined_pickle, "unpickle", end_at_the_third)
    for name in ("first", "second"):
        assert unpickle_confined(pickle.dumps(name, 4), stub_for).value == name
    with pytest.raises(UnreadablePickle, match="its reader gave no answer"):
        unpickle_confined(pickle.dumps("third", 4), stub_for)
    assert unpickle_confined(pickle.dumps("fourth", 4), stub_for).value == "fourth"


@pytest.mark.skipif(not confinement.describe_confinement()[0], reason="this kernel filters no system calls")
def test_nothing_is_within_reach_of_that_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def write(*_: Any) -> Unpickled:
        try:
            (tmp_path / "written").write_text("x")
        except OSError as error:
            return Unpickled(type(error).__name__, ())
        return Unpickled("written", ())

    monkeypatch.setattr(confined_pickle, "unpickle", write)
    assert unpickle_confined(b"\x80\x04N.", stub_for).value == "PermissionError"
    assert not (tmp_path / "written").exists()


def test_a_process_that_was_forked_starts_a_reader_of_its_own() -> None:
    assert unpickle_confined(pickle.dumps("here", 4), stub_for).value == "here"
    read_end, write_end = os.pipe()
    if not (child := os.fork()):
        forks: list[int] = []
        real = os.fork
        os.fork = lambda: forks.append(real()) or forks[-1]  # type: ignore[func-returns-value]
        found = unpickle_confined(pickle.dumps("there", 4), stub_for).value
        os.write(write_end, f"{found} {len(forks)}".encode())
        os._exit(0)
    os.close(write_end)
    assert os.read(read_end, 100) == b"there 1"
    os.close(read_end)
    os.waitpid(child, 0)
    assert unpickle_confined(pickle.dumps("here again", 4), stub_for).value == "here again"


def test_stubs_that_count_are_made_anew_for_each_pickle() -> None:
    sizes: list[int] = []

    def make(size: int) -> Any:
        sizes.append(size)
        return stub_for

    known = confined_pickle.PerPickle(make)
    raw = pickle.dumps("x" * 10, 4)
    assert confined_pickle._answer(raw, known, None)[:1] == b"+"
    assert confined_pickle._answer(raw, known, None)[:1] == b"+"
    assert sizes == [len(raw)] * 2
