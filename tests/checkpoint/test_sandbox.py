"""The child that loads templates and tokenizers computes and answers, and can do nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ckptcheck.checkpoint import sandbox
from ckptcheck.checkpoint.sandbox import describe_sandbox

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


@pytest.mark.skipif(not describe_sandbox()[0], reason="this kernel filters no system calls")
@pytest.mark.parametrize("threads", ["threads", "none"])
def test_the_child_of_templates_and_tokenizers_can_only_compute(threads: str, tmp_path: Path) -> None:
    """Also for root."""
    (tmp_path / "kept").touch()
    ran = subprocess.run(
        [sys.executable, "-I", "-c", TRIES, str(sandbox.CHILD), threads],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.stdout, ran.stderr) == ("SOUND\n", "")


def test_where_memory_cannot_be_limited_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.sys, "platform", "darwin")
    is_confined, sentence = describe_sandbox()
    assert not is_confined
    assert sentence.startswith("templates and tokenizers are not loaded: needs Linux")
