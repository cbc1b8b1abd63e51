"""Runs a call of a gate until its deadline."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Report
from ckptcheck.linter.stored_report import load_report
from ckptcheck.live.gate.plan import Call
from ckptcheck.runners.child_python import start_python
from ckptcheck.text.file_io import read_json_file

CLEAN_UP_SECONDS = 45.0
"""Seconds that a call has to end its processes after the deadline; then it is killed."""
STDERR = 2
"""The gate's own stderr, where messages of a call go; stdout is for the report."""


@dataclass(frozen=True)
class CallResult:
    """The result of a call of a gate."""

    reports: tuple[Report, ...] = ()
    error: str = ""
    """Why it could not check; "" if it could."""
    was_stopped: bool = False
    """Whether the deadline stopped it; its reports then cover the work up to the deadline."""
    seconds: float = 0.0
    """How long it ran."""


class Outcome(msgspec.Struct):
    """The file that the process of a call writes."""

    reports: list[dict[str, Any]] = []
    error: str | None = None
    hint: str | None = None


def run_call(call: Call, file: Path, deadline: float | None) -> CallResult:
    """Run a call in a process of its own.

    file: where that process writes its result for this one. deadline: the moment by `time.monotonic` at which the call is stopped;
    None: never. If a signal ends the gate, it raises KeyboardInterrupt once the call has ended.
    """
    file.unlink(missing_ok=True)
    began = time.monotonic()
    ended = _run_process(call, file, deadline)
    seconds = time.monotonic() - began
    try:
        # the folder may be shared, so anybody may have written it
        outcome = msgspec.convert(read_json_file(file), Outcome)
        reports = tuple(map(load_report, outcome.reports))
    except (OSError, ValueError, CkptcheckError):
        outcome, reports = Outcome(error=f"its process ended with {_describe_exit(ended)}"), ()
    finally:
        file.unlink(missing_ok=True)
    if outcome.error is not None:
        hint = f" ({outcome.hint})" if outcome.hint else ""
        return CallResult(error=outcome.error + hint, was_stopped=ended is None, seconds=seconds)
    return CallResult(reports, was_stopped=ended is None, seconds=seconds)


def _run_process(call: Call, result: Path, deadline: float | None) -> int | None:
    """Run the call in a process and return its exit code; None if the deadline stopped it."""
    request = {"function": call.function, "arguments": dict(call.arguments), "result": str(result)}
    process = start_python(["-m", "ckptcheck.live.gate.call_process"], stdin=subprocess.PIPE, stdout=STDERR)
    assert process.stdin is not None
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request, default=str).encode() + b"\n")
            process.stdin.flush()
        return process.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(CLEAN_UP_SECONDS)
            process.kill()
            process.wait()
        with suppress(BrokenPipeError):
            process.stdin.close()


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"
