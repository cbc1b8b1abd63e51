"""Runs the phases of a trial: each is announced, has its time, and is named where it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import monotonic

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit.timeouts import Timeouts
from ckptcheck.live.runtime.process.deadlines import time_budget
from ckptcheck.live.runtime.process.errors import WorkerDied, WorkerTimeout
from ckptcheck.text.formatting import format_duration

Log = Callable[[str], None]
FollowPhase = Callable[[str, float], AbstractContextManager[None]]
"""Announces a phase and shows its time while it runs: name, seconds after which it is given up (see `Observer.phase`)."""
MAX_LOG_LINES = 12
"""Number of the last lines of a dead process's log that the user sees."""


class TrialPhases:
    """The phases of one trial, one after the other."""

    def __init__(self, timeouts: Timeouts, nbytes: int, log: Log, follow: FollowPhase | None = None) -> None:
        """Name what the phases need.

        Args:
            timeouts: of each kind of phase.
            nbytes: of the weights.
            log: gets messages, and without `follow` a line for each phase.
            follow: shows the time of each phase.

        """
        self._timeouts, self._nbytes, self.log, self._follow = timeouts, nbytes, log, follow
        self.current = ""
        """The phase that runs, or ran last."""
        self._kind, self._seconds = "", 0.0

    @contextmanager
    def run(self, kind: str, phase: str) -> Iterator[None]:
        """Run a phase within the time that phases of its kind have."""
        self.current, self._kind = phase, kind
        self._seconds = self._timeouts.seconds(kind, self._nbytes)
        if self._follow is None:
            self.log(phase)
        with self._follow(phase, self._seconds) if self._follow else nullcontext(), time_budget(self._seconds):
            yield

    def count_rounds(self, number: int) -> Iterator[int]:
        """Yield 1, 2, … and say after each round but the last how long the rounds took, and how long the rest will take."""
        start_time = monotonic()
        for done in range(1, number + 1):
            yield done
            if done < number:
                seconds = monotonic() - start_time
                self.log(
                    f"step {done} of {number} is done after {format_duration(seconds)}, about"
                    f" {format_duration(seconds / done * (number - done))} left"
                )

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
