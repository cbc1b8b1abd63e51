"""The child that loads templates and tokenizers computes and answers, and can do nothing else."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ckptcheck.checkpoint import chat_template, sandbox
from ckptcheck.checkpoint.chat_template import ChatTemplate
from ckptcheck.checkpoint.sandbox import describe_sandbox
from ckptcheck.errors import EvidenceError
from tests.checkpoint.test_tokenizer import CHAT
from tests.factories.command_line import run_with_limit

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


needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the child runs on Linux alone")


@needs_linux
@pytest.mark.parametrize(
    ("kind", "most", "reason"),
    [
        (resource.RLIMIT_NOFILE, 8, "a child process could not be started: Too many open files"),
        (resource.RLIMIT_FSIZE, 0, "a child process could not be started: No usable temporary directory found"),
        (resource.RLIMIT_CPU, 20, ""),
        (resource.RLIMIT_AS, 600 << 20, ""),
    ],
)
def test_a_child_that_cannot_start_is_incomplete_and_a_lower_limit_is_kept(kind: int, most: int, reason: str) -> None:
    """The child once asked for more than it may have, could not be limited, and the scan was clean, with 7 rules skipped."""
    ended = run_with_limit(kind, most, "scan", CHAT, "--select", "TOK006,TOK008")
    assert ended.returncode == (2 if reason else 0), ended.stderr
    assert reason in ended.stdout
    assert "skipped" not in ended.stdout


@needs_linux
def test_a_lower_limit_of_this_process_blames_no_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that ends the child at the child's own limit has a finding; at a lower one nobody knows."""
    hungry = ChatTemplate("chat_template.jinja", None, "{{ 'a' * 10**9 }}", {})
    assert hungry.exceeded_limit == f"it takes more than {chat_template.MEMORY >> 20} MiB of memory"
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1 << 28, -1) if kind == resource.RLIMIT_AS else (-1, -1))
    with pytest.raises(EvidenceError, match="`ulimit -v` is set lower here than what it may use"):
        _ = ChatTemplate("chat_template.jinja", None, hungry.text, {}).exceeded_limit
    assert ChatTemplate("chat_template.jinja", None, "{{ messages[0].content }}", {}).exceeded_limit is None


@needs_linux
@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("os.kill(os.getpid(), 9)", "a child process was killed"),
        ("sys.stdout = open('/dev/full', 'w')", "a child process could not write its answer"),
    ],
)
def test_a_child_that_does_not_end_by_itself_has_no_finding(
    end: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child.py"
    text = sandbox.CHILD.read_text(encoding="utf-8")
    child.write_text(text.replace("library = load()", f"library = load(); {end}"), encoding="utf-8")
    monkeypatch.setattr(sandbox, "CHILD", child)
    with pytest.raises(EvidenceError, match=reason):
        _ = ChatTemplate("chat_template.jinja", None, "sound", {}).exceeded_limit
