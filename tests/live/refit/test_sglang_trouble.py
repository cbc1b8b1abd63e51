"""The whole command, when the real SGLang dies of a tensor that does not fit, or hangs while its other half goes on answering.

Run by ``make matrix``, for it takes a minute; `tests/live/runtime/engines/test_sglang.py` kills the engine itself.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import needs_engine
from tests.factories.killed_commands import Command
from tests.paths import DOUBLES

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("sglang-cpu"),
    pytest.mark.matrix,
]
SOUND = ("--engine", "sglang", "--trainer", "transformers", "--no-check-logprobs")
PYTHON = """#!{here}
import os, sys
arguments = sys.argv[1:]
if arguments[1] != "-c":  # else it is asked which packages are there
    arguments[5:7] = [{name!r}, {module!r}]  # in place of the trainer of ckptcheck, and the file it is from
os.execv({python!r}, [{python!r}, *arguments])
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A temporary folder with a name so short that engines can make sockets in it."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        yield Path(folder)


def test_a_tensor_of_another_shape_kills_sglang_and_nobody_else(place: Path) -> None:
    needs_engine("sglang")
    module = DOUBLES / "misshaping_trainer.py"
    script = place / "python"
    python = str(needs_engine("megatron").python)  # has transformers
    script.write_text(PYTHON.format(here=sys.executable, name=module.stem, module=str(module), python=python))
    script.chmod(0o755)
    command = Command(place, *SOUND, "--steps", "0", "--set", f"trainer-python={script}")
    command.until("scramble")
    schedulers = command.below("sglang::schedul")
    assert len(schedulers) == 1
    why = command.why()
    assert why.startswith("could not finish first sync: sglang died")
    assert "Attempted to load weight" in why
    assert not any(Path(f"/proc/{process}").exists() for process in schedulers)


def test_a_scheduler_that_hangs_while_requests_are_still_taken(place: Path) -> None:
    needs_engine("sglang")
    needs_engine("megatron")
    command = Command(place, *SOUND, "--set", "perturb=0.02", "--set", "timeout=sync=5")
    command.until("step 1")
    (scheduler,) = command.below("sglang::schedul")
    os.kill(scheduler, signal.SIGSTOP)
    assert command.why().startswith(
        "could not finish wake: sglang did not answer in time when asked to wake, and was ended"
    )
    assert not Path(f"/proc/{scheduler}").exists()
