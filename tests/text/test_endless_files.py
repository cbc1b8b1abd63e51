"""Files that a user names, and that have no end or forty gigabytes of nothing: they are refused in a sentence."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptcheck import history
from ckptcheck.compare.manifest import read_manifest
from ckptcheck.compare.signatures.keys import SigningKey, TrustedSigner
from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.document import read_text_file
from ckptcheck.linter.baseline import read_baseline
from ckptcheck.linter.settings import load_settings
from ckptcheck.live.gate.gate_file import read_gate_request
from ckptcheck.rollouts.metrics.noise_floor import read_noise_floor
from ckptcheck.rollouts.prompts import read_prompts_file
from ckptcheck.text import file_io
from ckptcheck.text.file_io import read_regular_file, read_whole_file, real_path
from tests.limited_child import run_limited
from tests.paths import ROOT

READERS: dict[str, Callable[[Path], object]] = {
    "manifest": read_manifest,
    "baseline": read_baseline,
    "settings": load_settings,
    "gate file": lambda path: read_gate_request([str(path)]),
    "floor": read_noise_floor,
    "prompts": lambda path: read_prompts_file(path, None),
}
OTHERS: dict[str, Callable[[Path], object]] = {
    **READERS,
    "job": lambda path: read_text_file(path, path.name),
    "record or log": history,
    "private key": lambda path: SigningKey(path).configure(None),
    "public key": lambda path: TrustedSigner(path).configure(None),
}
"""Those, and readers that say their own sentence of deep lists and long numbers."""


@pytest.mark.parametrize("kind", ["a device", "a sparse file", "deep lists", "a long number"])
@pytest.mark.parametrize("name", READERS)
def test_what_has_no_end_is_refused_in_a_sentence(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / "named.toml"
    if kind == "a device":
        path.symlink_to("/dev/zero")
    elif kind == "deep lists":
        path.write_text(("a = " if name in ("settings", "gate file") else "") + "[" * 200_000 + "\n")
    elif kind == "a long number":
        path.write_text(("a = " if name in ("settings", "gate file") else "") + "9" * 10_000 + "\n")
    else:
        with path.open("wb") as file:
            file.truncate(40 << 30)

    def say() -> str:
        with pytest.raises(CkptcheckError) as caught:
            READERS[name](path)
        return caught.value.message

    outcome = run_limited(say)
    assert not outcome.fault, outcome.fault
    assert str(path) in outcome.answer
    assert "\n" not in outcome.answer
    assert len(outcome.answer) < 500


@pytest.mark.parametrize("kind", ["a link to itself", "a pipe", "a device", "a sparse file"])
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_file_is_refused_in_a_sentence(
    tmp_path: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link to itself raised RuntimeError, and a pipe that nobody writes to was waited for without end."""
    monkeypatch.setattr(file_io, "WRITER_PATIENCE", 0)
    path = tmp_path / "named.toml"
    if kind == "a link to itself":
        path.symlink_to(path.name)
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 40 << 30)

    def say() -> str:
        with pytest.raises(CkptcheckError) as caught:
            OTHERS[name](path)
        return caught.value.message

    outcome = run_limited(say)
    assert not outcome.fault, outcome.fault
    assert "named.toml" in outcome.answer
    assert "NoneType" not in outcome.answer
    assert "\n" not in outcome.answer


def test_a_link_to_itself_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert real_path(tmp_path / "loop") == real_path(tmp_path) / "loop"
    resolving = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "ckptcheck").rglob("*.py")
        if ".resolve()" in path.read_text(encoding="utf-8") and "worker" not in path.parts
    ]
    assert not resolving, "Path.resolve raises RuntimeError: take real_path"


def test_a_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert read_whole_file(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes, which no such file has"):
        read_whole_file(tmp_path / "file", 4)


def test_a_read_takes_memory_for_what_is_there(tmp_path: Path) -> None:
    """A read of up to 2 GB took 2 GB of addresses, so that a small file could not be read where memory is limited."""
    (path := tmp_path / "file").write_bytes(b"12345")
    for read in (read_regular_file, read_whole_file):
        outcome = run_limited(lambda read=read: str(read(path, 1 << 31)), addresses=256 << 20)
        assert (outcome.fault, outcome.answer) == ("", "b'12345'"), outcome
    assert [read_regular_file(path, most) for most in (0, 1, 5, 6)] == [b"", b"1", b"12345", b"12345"]
    os.truncate(path, 1 << 40)  # a sparse file: it takes no disk

    def read_sparse() -> str:
        with pytest.raises(OSError, match="more than") as caught:
            read_whole_file(path, 1 << 30)
        return str(caught.value)

    outcome = run_limited(read_sparse, addresses=256 << 20)
    assert not outcome.fault, outcome
    assert "more than 1,073,741,824 bytes" in outcome.answer


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "pipe")
    content = bytes(range(1, 256)) * 20_000
    writer = threading.Thread(target=path.write_bytes, args=(content,))
    writer.start()
    assert read_whole_file(path, 1 << 30) == content
    writer.join()


def test_a_pipe_whose_writer_takes_its_time_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_io, "WRITER_PATIENCE", 0)
    os.mkfifo(path := tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a pipe into which nobody writes"):
        read_whole_file(path, 1 << 30)
    held = os.open(path, os.O_RDWR)
    opened = threading.Event()
    is_there = file_io.os.set_blocking

    def tell(file: int, blocking: bool) -> None:
        is_there(file, blocking)
        opened.set()

    def write() -> None:
        opened.wait()
        os.write(held, b"12345")
        os.close(held)

    monkeypatch.setattr(file_io.os, "set_blocking", tell)
    writer = threading.Thread(target=write)
    writer.start()
    assert read_whole_file(path, 1 << 30) == b"12345"
    writer.join()


def test_a_part_of_nothing_is_no_gigabyte(tmp_path: Path) -> None:
    from ckptcheck.runners.parts import read_parts

    with (tmp_path / "part-0-of-1.ckptcheck-part").open("wb") as file:
        file.truncate(1 << 30)

    def say() -> str:
        with pytest.raises(CkptcheckError) as caught:
            read_parts(tmp_path)
        return caught.value.message

    outcome = run_limited(say)
    assert not outcome.fault, outcome.fault
    assert "is no part of ckptcheck" in outcome.answer


def test_a_pipe_from_which_nobody_reads_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_io, "READER_PATIENCE", 0.1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(CkptcheckError, match="it is a pipe from which nobody reads"):
        file_io.replace_file(pipe, b"report")
    assert os.listdir(tmp_path) == ["pipe"]

    monkeypatch.setattr(file_io, "READER_PATIENCE", 10.0)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    file_io.replace_file(pipe, b"report" * 50_000)
    reader.join()
    assert read == [b"report" * 50_000]
