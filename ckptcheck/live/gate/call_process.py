"""Runs one call of a gate in a process of its own, so that a deadline can end it: ``python -m ckptcheck.live.gate.call_process``.

Reads one line of JSON from stdin: the function, its arguments, and the file for the result. The process ends when stdin closes,
which it does when the gate dies.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from msgspec import structs

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.file_io import replace_file
from ckptcheck.text.observer import Observer

FIRST_STEP = "first_step"
"""The call that is no function of the API."""


class StderrObserver(Observer):
    """Writes messages to stderr, which is the gate's own."""

    def log(self, message: str) -> None:
        """Write a message."""
        from ckptcheck.reporters.printable import printable

        sys.stderr.write(printable(message) + "\n")
        sys.stderr.flush()


def main() -> None:
    """Run the call that stdin names, and write ``{"reports": [...]}`` or ``{"error": ..., "hint": ...}`` as its result."""
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_gate, daemon=True).start()
    try:
        is_first_step, arguments = request["function"] == FIRST_STEP, request["arguments"]
        reports = _run_first_step(arguments) if is_first_step else _run_call(request["function"], arguments)
        result: dict[str, Any] = {"reports": reports}
    except KeyboardInterrupt:
        sys.exit(1)
    except (CkptcheckError, OSError) as error:
        hint = error.hint if isinstance(error, CkptcheckError) else None
        result = {"error": error.message if isinstance(error, CkptcheckError) else str(error), "hint": hint}
    try:
        replace_file(Path(request["result"]), json.dumps(result).encode())
    except CkptcheckError as error:  # a full disk: the gate reports that the result is missing
        sys.exit(f"ckptcheck: {error.message}")


def _run_call(name: str, arguments: dict[str, Any]) -> list[Any]:
    """Call a function of the API, and return its reports as JSON, with the tables that a summary shows; [] for anything else."""
    import ckptcheck
    from ckptcheck.linter.report import Report, Reports

    positional = arguments.pop("*", [])
    function = getattr(ckptcheck, name)
    outcome = function(*positional, **arguments, observer=StderrObserver())
    reports = [outcome] if isinstance(outcome, Report) else outcome if isinstance(outcome, Reports) else []
    return [
        structs.replace(
            report, sections=tuple(one.shorter or one for one in report.sections if not one.is_idle)
        ).to_dict()
        for report in reports
    ]


def _run_first_step(arguments: dict[str, Any]) -> list[Any]:
    """Run the job's own command for its first step, and return the reports as JSON."""
    import msgspec

    from ckptcheck.live.gate.first_step import FirstStepCall, run_first_step

    call = msgspec.convert(arguments, FirstStepCall)
    return [report.to_dict() for report in run_first_step(call, StderrObserver())]


def _end_with_gate() -> None:
    """Wait until stdin closes, then end this process as a scheduler would."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
