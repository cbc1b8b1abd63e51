"""How a framework's job prints what its steps computed, and how it runs for its first step alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from math import isfinite
from typing import Any

from ckptcheck.framework_folders import list_frameworks_with, load_framework_file
from ckptcheck.runs.history.record import LoggedStep


@dataclass(frozen=True, kw_only=True)
class PrintedSteps:
    """How a job prints its steps: ``ckptcheck/frameworks/NAME/printed_steps.py``."""

    row: re.Pattern[str]
    """Matches the line of the log in which a step's numbers stand, or after which they stand; its group, if it has one, the number
    of the step."""
    number: re.Pattern[str]
    """Matches one number of a step: its name, its value. The gap among them is one of `runs.history.logged_gap`."""
    loss: str
    """The number that has to be finite."""
    gradient: str = ""
    """The norm of the gradient, 0 where a step moves no weight; "" where the log does not have it."""
    before: re.Pattern[str] | None = None
    """Matches a line before `row` with more numbers of the step; None where there is none."""
    zeros: tuple[str, ...] = ()
    """Numbers that are 0 at step 0, where a model is compared with itself."""
    logprobs: tuple[str, ...] = ()
    """The means of the trainer's logprobs and of the reference's, which are equal at step 0."""
    curves: Mapping[str, str] = field(default_factory=dict)
    """Name of a curve in `rollouts.curves.CURVES` → the number that is it."""


@dataclass(frozen=True, kw_only=True)
class FirstStep(PrintedSteps):
    """What a framework's folder says of the first step of a job: ``ckptcheck/frameworks/NAME/first_step.py``."""

    steps: int
    """Optimizer steps that run: so many that what the first one learned is sent to the engine."""
    settings: Mapping[str, str]
    """Key of the framework → its value for this run. ``{folder}`` stands for a folder that takes what the job writes."""
    program: tuple[str, ...] = ()
    """The command that runs a configuration file, which comes after it; () where the framework has none of its own."""

    def write_words(self, style: str, folder: str) -> list[str]:
        """Return the settings as words of a command line. style: as of `Framework`; folder: for what the job writes."""
        # ++ sets a key whether the configuration has it or not
        before = "++" if style == "hydra" else "--"
        return [f"{before}{key}={value}" for key, value in self.fill_in(folder).items()]

    def fill_in(self, folder: str) -> dict[str, str]:
        """Return the settings with the folder that takes what the job writes."""
        return {key: value.replace("{folder}", folder) for key, value in self.settings.items()}


Row = Mapping[str, float]
"""Name of a number → its value at one step, as the job logged it."""
STEP = "#"
"""The name under which a row has the number of its step, where the log says it."""
LONGEST_LINE = 100_000
"""Characters of a line that are searched for numbers."""


class StepLog:
    """Reads the numbers of each step out of a job's log, line by line."""

    def __init__(self, printed: PrintedSteps) -> None:
        self.rows: list[Row] = []
        """The numbers of each step so far."""
        self._printed = printed
        self._row: dict[str, float] | None = None
        self._ahead: dict[str, float] = {}

    def read(self, line: str) -> None:
        """Take the next line of the log."""
        line = line[:LONGEST_LINE].rstrip()
        if self._printed.before is not None and self._printed.before.search(line):
            self._ahead.update(_list_numbers(self._printed.number, line))
            return
        begins = self._printed.row.search(line)
        if begins is None and self._row is None:
            return
        found = dict(_list_numbers(self._printed.number, line))
        if begins:
            number = {STEP: float(begins[1])} if begins.lastindex else {}
            # a framework that writes one line a step, or one that writes a line for each number below
            self._row = None if found else {}
            self.rows += [{**self._ahead, **found, **number}] if found else []
            self._ahead = {}
        elif found and self._row is not None:
            if not self._row:
                self.rows.append(self._row)
            self._row |= {**found, **self._row}


def _list_numbers(pattern: re.Pattern[str], line: str) -> Iterator[tuple[str, float]]:
    for match in pattern.finditer(line):
        with suppress(ValueError):  # a version, a date
            yield match[1], float(match[2])


@cache
def list_printed_steps() -> dict[str, PrintedSteps]:
    """Return name of a framework's folder → how its jobs print their steps: one of two files there says it."""
    own = {
        name: load_framework_file(name, "printed_steps").PRINTED_STEPS for name in list_frameworks_with("printed_steps")
    }
    first = {name: load_framework_file(name, "first_step").FIRST_STEP for name in list_frameworks_with("first_step")}
    return dict(sorted({**own, **first}.items()))


def find_logged_step(metrics: Mapping[Any, Any], step: int) -> LoggedStep | None:
    """Return what a job logs of a step beside the gap, by the names of the framework that has most of them; None for nothing."""
    known = {name: [*each.zeros, *each.logprobs, each.gradient] for name, each in list_printed_steps().items()}
    name = max(known, key=lambda each: sum(number in metrics for number in known[each]))
    row = {}
    for number in known[name]:
        with suppress(KeyError, TypeError, ValueError, RuntimeError):
            row[number] = float(metrics[number])
    return describe_step(step, row, list_printed_steps()[name]) if row else None


def describe_step(step: int, row: Row, printed: PrintedSteps) -> LoggedStep:
    """Return what a row says of its step."""
    zeros = {name: row[name] for name in printed.zeros if name in row}
    means = [row[name] for name in printed.logprobs if name in row]
    if len(means) > 1:
        zeros[" - ".join(printed.logprobs)] = means[0] - means[1]
    finite = {name: value for name, value in zeros.items() if isfinite(value)}
    return LoggedStep(step, row.get(printed.gradient), finite, means[0] if means else None)
