"""The real megatron-core and the real vLLM are killed and starved; see test_trouble.py for every phase with stand-ins."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import needs_engine
from tests.factories.killed_commands import Command

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("vllm-cpu")]


@pytest.fixture
def place() -> Iterator[Path]:
    """A temporary folder with a name so short that engines can make sockets in it."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        yield Path(folder)


def test_a_rank_of_the_trainer_is_killed(place: Path) -> None:
    needs_engine("vllm")
    needs_engine("megatron")
    command = Command(place, "--pp", "2", "--no-check-logprobs")
    command.until("step 1")
    os.kill(command.of("megatron_trainer")[-1], signal.SIGKILL)
    report = command.report()
    why = report["crashed"][0]["error"]
    # A busy machine may kill it only when the step is done, while something reads what it made.
    found = re.match(
        r"could not finish (sync after |reference for )?step 1: megatron died \(exit code \d+\) when asked to (\w+); its last",
        why,
    )
    assert found is not None, why
    assert found[1] or found[2] == "step"
    assert f"died (SIGKILL) when asked to {found[2]}" in why
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
    command = Command(place, "--trainer", "transformers", "--set", f"engine-python={starved}")
    why = command.why()
    assert why.startswith("could not finish cold load: vllm ")
