"""Runs a call of a gate until its deadline, and keeps its result for the next start of the gate."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Report
from ckptcheck.linter.stored_report import load_report
from ckptcheck.live.gate.plan import Call
from ckptcheck.runners.child_python import start_python
from ckptcheck.text.file_io import read_json_file, replace_file

KEPT_SECONDS = 24 * 3600
"""Age up to which a result is used again: the engine, the driver or the machine may change by tomorrow."""
CLEAN_UP_SECONDS = 45.0
"""Seconds that a call has to end its processes after the deadline; then it is killed."""
STDERR = 2
"""The gate's own stderr, where messages of a call go; stdout is for the report."""
MOST_FILES = 10_000
"""Files of a folder that enter the fingerprint of a call."""


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
    age: float | None = None
    """Seconds since it ran, if the result comes from an earlier gate."""


class Outcome(msgspec.Struct):
    """The file that the process of a call writes."""

    reports: list[dict[str, Any]] = []
    error: str | None = None
    hint: str | None = None


class KeptResult(msgspec.Struct):
    """The stored result of a call. A folder may be shared, so anybody may have written it."""

    fingerprint: str
    time: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    reports: list[dict[str, Any]]


def run_call(call: Call, file: Path, deadline: float | None) -> CallResult:
    """Run a call, or return its earlier result.

    file: where the result is kept. deadline: the moment by `time.monotonic` at which the call is stopped; None: never.
    If a signal ends the gate, it raises KeyboardInterrupt once the call has ended.
    """
    fingerprint = _fingerprint(call)
    kept = _read_kept(call, file, fingerprint)
    if kept is not None:
        return kept
    for stale in (file, call.output):
        if stale is not None:
            stale.unlink(missing_ok=True)
    partial = file.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    began = time.monotonic()
    ended = _run_process(call, partial, deadline)
    seconds = time.monotonic() - began
    try:
        outcome = msgspec.convert(read_json_file(partial), Outcome)
        reports = tuple(map(load_report, outcome.reports))
    except (OSError, ValueError, CkptcheckError):
        outcome, reports = Outcome(error=f"its process ended with {_describe_exit(ended)}"), ()
    finally:
        partial.unlink(missing_ok=True)
    if outcome.error is not None:
        hint = f" ({outcome.hint})" if outcome.hint else ""
        return CallResult(error=outcome.error + hint, was_stopped=ended is None, seconds=seconds)
    result = CallResult(reports, was_stopped=ended is None, seconds=seconds)
    if ended == 0 and all(report.verdict != "incomplete" for report in result.reports):
        _keep(file, fingerprint, outcome.reports, seconds)
    return result


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


def _keep(file: Path, fingerprint: str, reports: list[Any], seconds: float) -> None:
    kept = KeptResult(fingerprint, time.time(), seconds, reports)
    replace_file(file, json.dumps(msgspec.to_builtins(kept)).encode())


def _read_kept(call: Call, file: Path, fingerprint: str) -> CallResult | None:
    """Return the result that an earlier gate kept; None without one of this call, or without its output."""
    try:
        kept = msgspec.convert(read_json_file(file), KeptResult)
        age = time.time() - kept.time
        if kept.fingerprint != fingerprint or not 0 <= age < KEPT_SECONDS:
            return None
        if call.output is not None and not call.output.is_file():
            return None
        reports = tuple(map(load_report, kept.reports))
    except (OSError, ValueError, CkptcheckError):
        return None
    return CallResult(reports, seconds=kept.seconds, age=age)


def _fingerprint(call: Call) -> str:
    """Return a digest of the call, of this version of ckptcheck, and of the size and time of every file that the call names."""
    from ckptcheck import __version__

    words = [__version__, call.function, json.dumps(dict(call.arguments), sort_keys=True, default=str)]
    words += _describe_files(call.arguments, call.output)
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


def _describe_files(value: Any, output: Path | None) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _describe_files(inner, output)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _describe_files(inner, output)
    elif isinstance(value, str) and value != str(output):
        with suppress(OSError, ValueError):
            path = Path(value)
            files = sorted(path.rglob("*"))[:MOST_FILES] if path.is_dir() else [path]
            for file in files:
                if file.is_file():
                    stat = os.stat(file)
                    yield f"{file} {stat.st_size} {stat.st_mtime_ns}"
