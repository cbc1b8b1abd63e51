"""Runs the phases of a trial: each is announced, has its time, and is named where it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ckptcheck.errors import CkptcheckError
from ckptcheck.refit.timeouts import Timeouts
from ckptcheck.runtime.process.deadlines import time_budget
from ckptcheck.runtime.process.errors import WorkerDied, WorkerTimeout

Log = Callable[[str], None]
MAX_LOG_LINES = 12
"""Number of the last lines of a dead process's log that the user sees."""


class TrialPhases:
    """The phases of one trial, one after the other."""

    def __init__(self, timeouts: Timeouts, nbytes: int, log: Log) -> None:
        """Args: timeouts: of each kind of phase; nbytes: of the weights; log: gets a line for each phase."""
        self._timeouts, self._nbytes, self.log = timeouts, nbytes, log
        self.current = ""
        """The phase that runs, or ran last."""
        self._kind, self._seconds = "", 0.0

    @contextmanager
    def run(self, kind: str, phase: str) -> Iterator[None]:
        """Run a phase within the time that phases of its kind have."""
        self.current, self._kind = phase, kind
        self.log(phase)
        self._seconds = self._timeouts.seconds(kind, self._nbytes)
        with time_budget(self._seconds):
            yield

    def format_error(self, error: BaseException) -> str:
        """Return in one line what ended the trial; the user also gets the last lines of a dead process's log."""
        if not isinstance(error, CkptcheckError):
            return str(error) or "interrupted"
        for line in error.log_tail[-MAX_LOG_LINES:] if isinstance(error, WorkerDied) else ():
            self.log(f"  | {line}")
        text = error.message + (f"; {error.hint}" if error.hint else "")
        if isinstance(error, WorkerTimeout):
            text += f"; the phase had {self._seconds:,.0f} s (--timeout {self._kind}=SECONDS)"
        return text
