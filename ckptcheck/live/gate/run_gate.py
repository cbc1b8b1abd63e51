"""Runs the stages of a gate one after the other, and joins their findings into one report."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import structs

from ckptcheck.errors import CkptcheckError, OutputError
from ckptcheck.jobs.job import Job
from ckptcheck.jobs.live_arguments import SUGGESTIONS
from ckptcheck.linter.report import FailOn, Report, Section
from ckptcheck.linter.rule import SEVERITIES
from ckptcheck.live.gate.gate_file import ALL_STAGES, STAGES, GateRequest
from ckptcheck.live.gate.plan import Stage, plan_stages
from ckptcheck.live.gate.run_call import run_call
from ckptcheck.live.gate.unseen import describe_unseen
from ckptcheck.live.runtime.process.signal_guard import SignalGuard
from ckptcheck.reporters.html.page import render_page
from ckptcheck.text.file_io import open_lock_file, replace_file
from ckptcheck.text.formatting import count, format_duration, join_words
from ckptcheck.text.observer import Observer

PAGE = "report.html"
"""File of the results' folder with the whole report as a page."""
TITLES = {
    "record_rollouts": "the engine's responses",
    "score_rollouts": "the trainer's logprobs",
    "judge": "the verdict",
}
"""Function of a stage that has several → a name for its part."""


@dataclass
class StageResult:
    """The result of one stage of a gate."""

    name: str
    reports: list[Report] = field(default_factory=list)
    not_checked: str = ""
    """Why the stage did not check the job although it should have; "" if it did."""
    left_out: str = ""
    """Why the gate left the stage out although it could run: an earlier stage had decided."""
    seconds: float = 0.0
    """How long its calls ran, when they ran."""

    def describe(self, first: str = "") -> str:
        """Return the outcome in a few words. first: the first stage that did not check for the same reason."""
        if self.left_out:
            return f"not run: {self.left_out}"
        numbers = [
            count(number, severity, "info" if severity == "info" else None)
            for severity in SEVERITIES
            if (number := sum(report.count(severity) for report in self.reports))
        ]
        if self.not_checked:
            reason = f": {self.not_checked}" if first in ("", self.name) else f", as {first}"
            return ", ".join([f"not checked{reason}", *numbers])
        return ", ".join(numbers) or "clean"


def run_gate(
    job: Job,
    preflight: Report,
    request: GateRequest,
    functions: Mapping[str, Callable[..., Any]],
    fail_on: FailOn,
    observer: Observer,
    began: float,
) -> Report:
    """Run the stages after preflight, and return one report on all.

    Args:
        job: the job that preflight read.
        preflight: its report.
        request: the checks, and their time limit.
        functions: name → function of `ckptcheck.verbs` that a stage calls.
        fail_on: the lowest severity of a finding that ends the gate before more expensive stages.
        observer: receives messages.
        began: the moment by `time.monotonic` from which the deadline counts.

    Raises OutputError if the folder for results cannot be written, CkptcheckError if another gate uses it.
    """
    folder = request.results_folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}") from error
    if (folder / PAGE).exists() and not (folder / PAGE).is_file():  # a pipe would wait for a reader
        raise OutputError(f"cannot write {folder / PAGE}: it is no regular file")
    results = [StageResult("preflight", left_out="it is left out")]
    if "preflight" in request.stages:
        results = [StageResult("preflight", [preflight], preflight.error or "", seconds=time.monotonic() - began)]
    deadline = None if request.deadline is None else began + request.deadline
    limit = "" if request.deadline is None else f"the deadline of {format_duration(request.deadline)}"
    interruption = ""
    with ExitStack() as stack:
        stack.enter_context(lock_folder(folder))
        stack.enter_context(SignalGuard())
        for stage in plan_stages(job, request, functions, folder):
            failed = next((result for result in results if _fails(result, fail_on)), None)
            result = StageResult(stage.name)
            results.append(result)
            if failed is not None and not request.goes_on:
                result.left_out = f"{failed.name} found {failed.describe()}"
            elif interruption:
                result.not_checked = interruption
            else:
                try:
                    _run_stage(stage, result, folder, deadline, limit, observer)
                except KeyboardInterrupt as error:
                    interruption = result.not_checked = str(error) or "interrupted"
    left_out = [StageResult(name, left_out="it is left out") for name in STAGES[1:] if name not in request.stages]
    results = sorted((*results, *left_out), key=lambda result: ALL_STAGES.index(result.name))
    report = _join(job, preflight, request, results)
    replace_file(folder / PAGE, render_page([report]).encode())
    observer.log(f"gate: the page is {folder / PAGE}")
    return report


def _fails(result: StageResult, fail_on: FailOn) -> bool:
    return any(structs.replace(report, crashed=(), error=None).exit_code(fail_on) == 1 for report in result.reports)


def _run_stage(
    stage: Stage, result: StageResult, folder: Path, deadline: float | None, limit: str, observer: Observer
) -> None:
    """Run the calls of a stage until one cannot check or the deadline has passed; report the unchecked parts."""
    for number, call in enumerate(stage.calls, 1):
        if deadline is not None and time.monotonic() >= deadline:
            result.not_checked = f"{limit} had passed"
            return
        observer.log(f"gate: {stage.name}" + (f", {TITLES[call.function]}" if call.function in TITLES else ""))
        outcome = run_call(call, folder / f"{stage.name}-{number}.json", deadline)
        result.reports += outcome.reports
        result.seconds += outcome.seconds
        if outcome.was_stopped:
            result.not_checked = f"it was stopped at {limit}"
            return
        incomplete = next((report for report in outcome.reports if report.verdict == "incomplete"), None)
        if outcome.error or incomplete is not None:
            result.not_checked = outcome.error or _explain_incomplete(incomplete)
            return
    result.not_checked = stage.cannot


def _explain_incomplete(report: Report | None) -> str:
    assert report is not None
    return report.error or f"{report.crashed[0][0]}: {report.crashed[0][1]}"


def _join(job: Job, preflight: Report, request: GateRequest, results: Sequence[StageResult]) -> Report:
    """Return one report on all stages. A stage that did not check the job makes it incomplete."""
    reports = [report for result in results for report in result.reports]
    findings = sorted(
        dict.fromkeys(finding for report in reports for finding in report.findings),
        key=lambda finding: SEVERITIES.index(finding.severity),
    )
    crashed = tuple(dict.fromkeys(row for report in reports for row in report.crashed))
    skipped = tuple(dict.fromkeys(row for report in reports for row in report.skipped))
    not_passed = {code for code, _ in (*crashed, *skipped)} | {finding.code for finding in findings}
    passed = dict.fromkeys(code for report in reports for code in report.passed if code not in not_passed)
    unchecked: dict[str, list[str]] = {}
    for result in results:
        if result.not_checked:
            unchecked.setdefault(result.not_checked, []).append(result.name)
    reasons = [
        f"{join_words(names)} {'is' if len(names) == 1 else 'are'} not checked: {reason}"
        for reason, names in unchecked.items()
    ]
    rows = tuple(
        (result.name, result.describe(unchecked.get(result.not_checked, [""])[0]), round(result.seconds, 1))
        for result in results
    )
    sections = [Section("Stages of the gate", ("stage", "outcome", "seconds"), rows)]
    if unseen := tuple(describe_unseen(job, [result.name for result in results if result.reports])):
        sections.append(Section("What this gate does not see of the job", lines=unseen))
    # What they suggest is this gate.
    sections += [section for report in reports for section in report.sections if section.title != SUGGESTIONS]
    scanned = [report.counts for result in results if result.name == "scan" for report in result.reports]
    counts = {name: sum(each.get(name, 0) for each in scanned) for name in ("files", "tensors", "bytes")}
    return Report(
        target=request.job[0],
        subject=job.subject,
        findings=tuple(findings),
        passed=tuple(passed),
        skipped=skipped,
        crashed=crashed,
        error="; ".join(reasons) or None,
        counts=counts if scanned else preflight.counts,
        sections=tuple(sections),
        read=preflight.read,
        rules=preflight.rules,
    )


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the folder until the block ends, or the process dies. Raises CkptcheckError if another process holds it."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    try:
        handle = open_lock_file(folder / "lock")
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EINVAL):
            raise
        raise CkptcheckError(
            f"{folder / 'lock'} is no regular file", hint="remove it, or give the gate another --folder"
        ) from error
    with os.fdopen(handle, "a"):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CkptcheckError(
                f"another gate is at work in {folder}", hint="start the gate on one node, or give each a --folder"
            ) from error
        except OSError:
            pass  # a file system without locks
        yield
