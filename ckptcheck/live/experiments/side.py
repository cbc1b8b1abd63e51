"""A trainer or an engine that experiments share: it starts when it is first needed, and anew where one needs another set-up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.rule import Skip
from ckptcheck.live.runtime.process.errors import RemoteError


class Closable(Protocol):
    """A process that can be ended."""

    def close(self) -> None:
        """End it; may be called twice."""
        ...


Setup = TypeVar("Setup")
Process = TypeVar("Process", bound=Closable)


class Side(Generic[Setup, Process]):
    """One side of a run.

    start: starts it with a set-up; gets what runs now, or None, and may take over its process. job: the set-up of the user's job;
    where that does not start, no other is tried.
    """

    def __init__(self, start: Callable[[Setup, Process | None], Process], *, job: Setup | None = None) -> None:
        self._start, self._job = start, job
        self.process: Process | None = None
        self.setup: Setup | None = None
        """The set-up of `process`."""
        self.refused: dict[Setup, str] = {}
        """Set-up that does not start → why."""
        self._spare: Process | None = None

    def ready(self, setup: Setup) -> Process:
        """Return it with this set-up; start it where needed. Raises Skip where that failed before, and what the start raises."""
        if reason := (self.refused.get(self._job) if self._job is not None else None) or self.refused.get(setup):
            raise Skip(reason)
        if self.process is not None and self.setup == setup:
            return self.process
        replaced, self.process, self._spare = self.process or self._spare, None, None
        try:
            self.process = self._start(setup, replaced)
        except BaseException as error:
            if isinstance(error, RemoteError):
                # the process lives, and can start another one
                self._spare = replaced
            elif replaced is not None:
                replaced.close()
            if isinstance(error, CkptcheckError):
                self.refused[setup] = error.message
            raise
        self.setup = setup
        return self.process

    def discard(self) -> None:
        """Close and forget what runs, because it died or is needed no more; the next request starts another."""
        for process in (self.process, self._spare):
            if process is not None:
                process.close()
        self.process = self._spare = self.setup = None
