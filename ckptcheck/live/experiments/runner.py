"""Runs experiments step by step, each within its time, and notes what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Generic, TypeVar

from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.experiment import Key, Result, ResultTable
from ckptcheck.live.runtime.process.deadlines import time_budget
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied, WorkerTimeout

Taken = TypeVar("Taken")


class ExperimentRunner(Generic[Key, Result]):
    """The experiments of one run.

    timeout: seconds for each step. forget: called where an engine or a trainer died, so that both start anew for the next
    experiment; None: what a process raises ends the run.
    """

    def __init__(self, *, timeout: float | None = None, forget: Callable[[], None] | None = None) -> None:
        self._timeout, self._forget = timeout, forget
        self.table = ResultTable[Key, Result]()

    def advance(self, key: Key, step: Callable[[], Taken]) -> Taken | None:
        """Take the next step of an experiment, and return it; None where the experiment is over, and the table says how."""
        try:
            with time_budget(self._timeout):
                return step()
        except StopIteration as end:
            self.table.results[key] = end.value
        except Skip as skip:
            self.table.unavailable[key] = str(skip)
        except RemoteError as error:
            if self._forget is None:
                raise
            self.table.unavailable[key] = str(error)
        except (WorkerDied, WorkerTimeout) as error:
            if self._forget is None:
                raise
            self.table.failures[key] = str(error)
            self._forget()
        return None

    def run(self, experiments: Mapping[Key, Iterator[object]]) -> ResultTable[Key, Result]:
        """Run experiments that need nothing from here, one after the other, each to its end."""
        for key, experiment in experiments.items():
            while self.advance(key, partial(next, experiment)) is not None:
                pass
        return self.table
