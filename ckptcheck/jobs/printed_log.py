"""Reads what a job printed of its steps, and makes of it a history for the rules that need no sync."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TypeVar

import msgspec

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.first_step import (
    LONGEST_LINE,
    STEP,
    PrintedSteps,
    Row,
    StepLog,
    describe_step,
    list_printed_steps,
)
from ckptcheck.linter.report import Section
from ckptcheck.rollouts.curves import CURVES, Curve
from ckptcheck.rollouts.run_comparison import RunComparison
from ckptcheck.rollouts.series import RolloutSeries
from ckptcheck.runs.history.history import History
from ckptcheck.runs.history.logged_gap import LOGGED, find_gap, find_logged, is_exact
from ckptcheck.runs.history.record import SyncRecord, read_lines

H = TypeVar("H", bound=History)
ENDINGS = (".log", ".txt", ".out", "")
"""Of files that may be logs where rollouts are expected too."""
GAP = Curve("logged gap", "gap", lambda member: None, 5e-4)
"""The mean |Δ| of the logprobs in nats a token, about, as the job measures it."""
RULES = ("not-finite", "logged-gap", "odd-step")
"""Names of the rules that need no sync. The others have nothing to judge in a log, and pass nothing."""


@dataclass(frozen=True)
class PrintedLog(History):
    """A job's log: a sync without a tensor stands for each step."""

    table: tuple[tuple[str, float, float, float, float], ...] = ()
    """Name of a number; its value at the first step, the median, the largest, and at the last step."""
    curves: Mapping[Curve, Mapping[int, float]] = field(default_factory=dict)
    """Each curve of training that the job printed: step → value."""

    @property
    def subject(self) -> str:
        """One line: whose log, and over which steps."""
        first, last = self.logged[0].step, self.logged[-1].step
        return f"log of {self.syncs[0].run} · {f'steps {first}–{last}' if last > first else f'step {first}'}"

    @property
    def counts(self) -> dict[str, int]:
        """One file, without tensors."""
        return {"files": 1, "tensors": 0, "bytes": 0}

    @property
    def sections(self) -> tuple[Section, ...]:
        """The table of what the job printed."""
        return (Section("What the job printed", ("number", "first", "median", "largest", "last"), self.table),)


@dataclass(frozen=True)
class LoggedRun(RolloutSeries):
    """A run of which there is no file of rollouts, but a log."""

    log: PrintedLog | None = None

    @property
    def target(self) -> str:
        """The log."""
        return self.log.target if self.log is not None else ""

    def compute_curves(self) -> dict[Curve, dict[int, float]]:
        """Return each curve that the job printed."""
        return {curve: dict(values) for curve, values in self.log.curves.items()} if self.log is not None else {}


def compare_logs(run: Sequence[Path], reference: Sequence[Path]) -> RunComparison | None:
    """Return the comparison of two runs by what they printed; None where these are not one log each.

    Raises CkptcheckError for a log without a reference.
    """
    if len(run) == 1 and not reference and run[0].suffix in ENDINGS and open_printed_log(run[0]) is not None:
        hint = "ckptcheck refit history FILE judges it alone, --against LOG compares it with that of another run"
        raise CkptcheckError(f"{run[0]} is what a job printed, and holds no rollouts", hint)
    if len(run) != 1 or len(reference) != 1 or any(path.suffix not in ENDINGS for path in (*run, *reference)):
        return None
    ours, theirs = open_printed_log(run[0]), open_printed_log(reference[0])
    return RunComparison(LoggedRun((), log=ours), LoggedRun((), log=theirs)) if ours and theirs else None


def open_printed_log(path: Path) -> PrintedLog | None:
    """Return a file as the log of the framework of which it has most steps; None if it has no step, and if it cannot be read."""
    printed = list_printed_steps()
    logs = {name: StepLog(each) for name, each in printed.items()}
    try:
        for _, line in read_lines(path):
            text = line[:LONGEST_LINE].decode(errors="replace")
            for log in logs.values():
                log.read(text)
    except OSError:
        return None
    name = max(logs, key=lambda each: len(logs[each].rows))
    rows = logs[name].rows
    return build_printed_log(str(path), name.replace("_", "-"), printed[name], rows) if rows else None


def build_printed_log(
    target: str,
    framework: str,
    printed: PrintedSteps,
    rows: Sequence[Row],
    dtypes: tuple[str | None, str | None] = (None, None),
) -> PrintedLog:
    """Return the log with the numbers of each step. rows: at least one; dtypes: in which trainer and engine compute."""
    gaps = [gap.name for row in rows if (gap := find_gap(row, None)) is not None]
    table = []
    for name in dict.fromkeys(
        [printed.loss, printed.gradient, *printed.zeros, *printed.logprobs, *gaps, *printed.curves.values()]
    ):
        if values := [row[name] for row in rows if name in row]:
            finite = [value for value in values if math.isfinite(value)] or values
            table.append((name, values[0], median(finite), max(finite), values[-1]))
    steps = [int(row.get(STEP, place)) for place, row in enumerate(rows)]
    syncs = tuple(SyncRecord(run=framework, trainer=framework, step=step) for step in steps)
    log = PrintedLog(target, syncs, table=tuple(table), curves=_find_curves(printed, rows, steps))
    return add_logged_numbers(log, printed, rows, dtypes, steps)


def _find_curves(printed: PrintedSteps, rows: Sequence[Row], steps: Sequence[int]) -> dict[Curve, dict[int, float]]:
    """Return the curves of a log, the gap first."""
    curves: dict[Curve, dict[int, float]] = {GAP: {}, **{curve: {} for curve in CURVES}}
    for step, row in zip(steps, rows, strict=True):
        if (gap := find_gap(row, step)) is not None and gap.value is not None:
            curves[GAP][step] = LOGGED[find_logged(gap.name)].nats(gap.value)
        for curve in CURVES:
            if math.isfinite(value := row.get(printed.curves.get(curve.name, ""), math.nan)):
                curves[curve][step] = value
    return {curve: values for curve, values in curves.items() if values}


def add_logged_numbers(
    history: H,
    printed: PrintedSteps,
    rows: Sequence[Row],
    dtypes: tuple[str | None, str | None],
    steps: Sequence[int] | None = None,
) -> H:
    """Return a record with what the job's log says: the gap of each step, the loss, and how many steps came before each sync.

    An engine that keeps the record does not know the steps. A step without a gradient moves nothing, and does not count.
    dtypes: in which trainer and engine compute; steps: the number of each row, None to count them from 0.
    """
    if not rows:
        return history
    numbers = range(len(rows)) if steps is None else steps
    taken = [0]
    for row in rows:
        taken.append(taken[-1] + (row.get(printed.gradient) != 0.0))
    syncs = []
    for place, sync in enumerate(history.syncs):
        step = sync.step if sync.trainer and sync.step is not None else taken[min(place, len(taken) - 1)]
        row = rows[place] if place < len(rows) else {}
        finite = [row[name] for name in (printed.loss, printed.gradient) if name in row]
        # with a scaled loss, as float16 needs it, the first gradients may overflow: such a step is skipped
        loss = next((each for each in finite if math.isnan(each)), finite[0] if printed.loss in row else None)
        syncs.append(msgspec.structs.replace(sync, step=step, loss=loss))
    run = history.syncs[0].run
    gaps = [gap for step, row in zip(numbers, rows, strict=True) if (gap := find_gap(row, step)) is not None]
    dtype = next((each for each in dtypes if each not in (None, "float32")), "float32" if all(dtypes) else "")
    if gaps and is_exact(gaps[0]):
        dtype = "float32"  # whatever the configuration says: a script may set it
    gaps = [msgspec.structs.replace(gap, dtype=dtype) for gap in gaps]
    return replace(
        history,
        syncs=tuple(syncs),
        known_gaps=tuple((run, gap) for gap in gaps),
        logged=tuple(describe_step(step, row, printed) for step, row in zip(numbers, rows, strict=True)),
    )
