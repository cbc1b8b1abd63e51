"""The process that reads tables of contents computes and answers, and can do nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptcheck.checkpoint import confinement, sandbox
from ckptcheck.checkpoint.confinement import Ended, describe_confinement, run_confined
from ckptcheck.checkpoint.megatron import dcp
from ckptcheck.checkpoint.megatron.dcp import read_contents
from tests.checkpoint.megatron.test_megatron import IT
from tests.factories.checkpoint_cases import MEGATRON

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere nothing is forked")
FILTERED = pytest.mark.skipif(not describe_confinement()[0], reason="this kernel filters no system calls")
MEMORY = 1 << 28


def test_an_answer_comes_back_whole() -> None:
    answer = bytes(range(256)) * 40_000
    assert run_confined(lambda: answer, seconds=5, memory=MEMORY) == answer
    assert run_confined(lambda: b"", seconds=5, memory=MEMORY) == b""


def test_a_function_that_raises_has_no_answer() -> None:
    """And its caller must not do by itself what failed there."""
    with pytest.raises(Ended, match="its reader gave no answer"):
        run_confined(lambda: b"%d" % (1 // 0), seconds=5, memory=MEMORY)


def _hang() -> bytes:
    while True:
        pass


def _crash() -> bytes:
    import ctypes
    import faulthandler

    faulthandler.disable()  # of pytest, which would write all its threads
    return ctypes.string_at(0)


ENDS = {
    "a hang": (_hang, "it came to no end within 1 seconds"),
    "a crash": (_crash, r"it brought a process down \(SIGSEGV\)"),
    "memory without end": (lambda: bytes(1 << 30), "it takes too much memory"),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_ends_the_process_is_said(name: str) -> None:
    function, words = ENDS[name]
    with pytest.raises(Ended, match=words):
        run_confined(function, seconds=1, memory=MEMORY)


def _raise_limits() -> bytes:
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (100, 100))
    return b"done"


def _write(path: Path) -> bytes:
    path.write_text("x")
    return b"done"


REACHES: dict[str, Callable[[Path], bytes]] = {
    "read a file": lambda _: Path("/proc/self/status").read_bytes(),
    "write a file": lambda folder: _write(folder / "x"),
    "open a socket": lambda _: str(socket.socket()).encode(),
    "fork": lambda _: str(os.fork()).encode(),
    "end another process": lambda _: str(os.kill(os.getppid(), signal.SIGTERM)).encode(),
    "become another program": lambda _: str(os.execv(sys.executable, ["x"])).encode(),
    "list a folder": lambda _: str(os.listdir("/")).encode(),
    "raise its limits": lambda _: _raise_limits(),
    "write to a file that its parent holds": lambda _: str(os.write(_HELD[0], b"x")).encode(),
}
_HELD: list[int] = []


@FILTERED
@pytest.mark.parametrize("name", REACHES)
def test_nothing_is_within_reach(name: str, tmp_path: Path) -> None:
    """Also for root."""
    own = tmp_path / "own"
    with own.open("wb") as file:
        _HELD[:] = [file.fileno()]
        with pytest.raises(Ended, match="its reader gave no answer"):
            run_confined(lambda: REACHES[name](tmp_path), seconds=5, memory=MEMORY)
    assert own.read_bytes() == b""
    assert list(tmp_path.iterdir()) == [own]


def test_a_process_that_cannot_be_confined_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no /proc, say: the caller reads by itself, within its own budgets."""
    monkeypatch.setattr(confinement, "confine_process", lambda *_: 1 // 0)
    assert run_confined(lambda: b"x", seconds=5, memory=MEMORY) is None


def test_a_descriptor_that_select_does_not_take_is_waited_for() -> None:
    """A trainer that loads ckptcheck may hold thousands of connections."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("this machine gives no process 4,096 descriptors")
    with contextlib.ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1050):
            stack.callback(os.close, os.open("/dev/null", os.O_RDONLY))
        assert run_confined(lambda: b"x", seconds=5, memory=MEMORY) == b"x"


def test_a_table_is_read_the_same_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = (MEGATRON / "dense" / IT / ".metadata").read_bytes()
    asked: list[int] = []

    def watch(*_: object, **limits: int) -> bytes | None:
        asked.append(limits["seconds"])
        return None

    confined = read_contents(raw)
    monkeypatch.setattr(dcp, "run_confined", watch)
    assert read_contents(raw) == confined
    assert confined.readable
    assert len(asked) == 1


def test_a_table_that_hangs_its_reader_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcp, "_read_pickle", lambda _: _hang())
    monkeypatch.setattr(dcp, "LEAST_SECONDS", 1)
    found = read_contents(b"x")
    assert [defect.text for defect in found.defects] == ["this file cannot be read: it came to no end within 1 seconds"]


def test_where_nothing_can_be_forked_the_caller_reads_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement.sys, "platform", "darwin")
    assert run_confined(lambda: b"x", seconds=5, memory=MEMORY) is None
    assert describe_confinement() == (False, "pickles are read without a confined process: it needs Linux")


TRIES = """
import os, runpy, socket, subprocess, sys
child = runpy.run_path(sys.argv[1])
environment, refusal = child["environment"]()
child["confine"](5, 1 << 30, threads=sys.argv[2] == "threads")
sys.stdin.close()

for name, action in {
    "read": lambda: open(sys.argv[1]), "list": lambda: os.listdir("/"), "write": lambda: open("made", "w"),
    "delete": lambda: os.unlink("kept"), "connect": lambda: socket.socket(), "start": lambda: subprocess.run(["true"]),
    "fork": os.fork, "signal": lambda: os.kill(os.getppid(), 0), "be longer": lambda: child["resource"].setrlimit(0, (9, 9)),
}.items():
    try:
        action()
        print("can", name)
    except (OSError, ValueError):
        pass
print(environment.from_string("{{ 'sound'|upper }}").render())
"""
"""What the child for templates and tokenizers can do when it reads them."""


@FILTERED
@pytest.mark.parametrize("threads", ["threads", "none"])
def test_the_child_of_templates_and_tokenizers_can_only_compute(threads: str, tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    ran = subprocess.run(
        [sys.executable, "-I", "-c", TRIES, str(sandbox.CHILD), threads],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.stdout, ran.stderr) == ("SOUND\n", "")
