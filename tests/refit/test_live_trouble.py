"""The real megatron-core and the real vLLM are killed and starved; see test_trouble.py for every phase with stand-ins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import live
import pytest
from conftest import needs_engine

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("vllm-cpu")]


@pytest.fixture
def place() -> Iterator[Path]:
    """A temporary folder with a name so short that engines can make sockets in it."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        yield Path(folder)


class Command:
    """``ckptcheck refit`` with both, in a temporary folder of its own; what runs below it is found by a mark."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.mark, self.temporary = uuid.uuid4().hex, folder / "tmp"
        self.temporary.mkdir()
        source = live.write("llama", folder / "llama")
        environment = {**os.environ, "TMPDIR": str(self.temporary), "CELL": self.mark}
        command = [sys.executable, "-m", "ckptcheck", "refit", str(source), "--format", "json", *arguments]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.said: list[str] = []
        self.scratch: set[str] = set()

    def until(self, phase: str) -> None:
        """Read what it says until it says that."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if line == f"{phase}\n":
                break
        else:
            pytest.fail("".join(self.said))
        for words in self.running().values():
            self.scratch |= {word for word in words if word.startswith(("/dev/shm/ckptcheck", "/tmp/ckptcheck"))}

    def running(self) -> dict[int, list[str]]:
        """Return the processes with their command lines."""
        found = {}
        for place in Path("/proc").iterdir():
            try:
                if place.name.isdigit() and self.mark.encode() in (place / "environ").read_bytes():
                    found[int(place.name)] = (place / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
        return found

    def of(self, module: str) -> list[int]:
        """Return the processes of a far side, the guardian first, then it, then its ranks."""
        return sorted(process for process, words in self.running().items() if f"ckptcheck_far.{module}" in words)

    def report(self) -> dict[str, Any]:
        """Return the report once it has ended, and see that nothing is left."""
        out, err = self.process.communicate(timeout=300)
        assert self.process.returncode == 2, err
        assert self.running() == {}
        assert [path.name for path in self.temporary.iterdir()] == []
        assert not any(Path(folder).exists() for folder in self.scratch)
        assert "Traceback" not in err.replace("  | Traceback", "")
        found: dict[str, Any] = json.loads(out)
        assert found["verdict"] == "incomplete"
        return found

    def why(self) -> str:
        report = self.report()
        return str(report.get("error") or report["crashed"][0]["error"])


def test_a_rank_of_the_trainer_is_killed(place: Path) -> None:
    needs_engine("vllm")
    needs_engine("megatron")
    command = Command(place, "--pp", "2", "--no-check-logprobs")
    command.until("step 1")
    os.kill(command.of("megatron_trainer")[-1], signal.SIGKILL)
    report = command.report()
    why = report["crashed"][0]["error"]
    assert why.startswith("could not finish step 1: megatron died (exit code 70) when asked to step; its last words: ")
    assert "died (SIGKILL) when asked to step" in why
    assert report["passed"] == []
    assert report["counts"]["tensors"] > 20  # the first sync had been compared


def test_the_engine_is_killed_while_it_loads(place: Path) -> None:
    needs_engine("vllm")
    needs_engine("megatron")
    command = Command(place, "--trainer", "transformers")
    command.until("cold load")
    while len(found := command.of("vllm_engine")) < 2:
        assert command.process.poll() is None
    os.kill(found[1], signal.SIGKILL)
    assert command.why().startswith(
        "could not finish cold load: vllm died (SIGKILL: out of memory, or killed by somebody)"
    )


def test_an_engine_without_memory(place: Path) -> None:
    python = needs_engine("vllm").python
    needs_engine("megatron")
    starved = place / "python"
    starved.write_text(f'#!/bin/sh\nulimit -v 2500000\nexec {python} "$@"\n')
    starved.chmod(0o755)
    command = Command(place, "--trainer", "transformers", "--engine-python", str(starved))
    why = command.why()
    assert why.startswith("could not finish cold load: vllm ")
