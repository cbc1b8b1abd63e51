"""Writes to the terminal: the report to stdout, messages and progress bars to stderr."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from click.exceptions import Exit

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import FailOn, Report, Reports, only_informs
from ckptcheck.linter.rule import Finding, Rule
from ckptcheck.live.runtime.process.signal_guard import SignalGuard
from ckptcheck.text.formatting import format_bytes, format_duration, join_words
from ckptcheck.text.observer import Advance, Observer

if TYPE_CHECKING:
    from rich.progress import Progress


INTERRUPTED = 130
"""The usual exit code after SIGINT (Ctrl-C): 128 plus the number of the signal."""


def log(message: str) -> None:
    """Write a message to stderr. A terminal that was closed is no error."""
    from ckptcheck.reporters.printable import printable
    from ckptcheck.reporters.runner_commands import break_commands

    with contextlib.suppress(OSError):
        sys.stderr.write(break_commands(printable(message)) + "\n")


def shows_pictures(format: str) -> bool:
    """Return whether reports in this format show pictures, so that verbs have to draw them."""
    from ckptcheck.reporters import WITH_PICTURES

    return format in WITH_PICTURES


def write_reports(
    reports: Sequence[Report],
    rules: Sequence[Rule],
    format: str,
    output: Path | None,
    *,
    verbose: bool = False,
    quiet: bool = False,
    refresh: int | None = None,
) -> None:
    """Write the reports in a format to stdout, or to a file: whole or not at all.

    refresh: seconds after which a browser loads a page of HTML again; None for never.
    """
    if format == "text":
        from ckptcheck.reporters import text

        if output is None:
            text.write(reports, rules, sys.stdout, verbose=verbose, quiet=quiet)
            return
        buffer = io.StringIO()
        text.write(reports, rules, buffer, verbose=verbose, quiet=quiet)
        content = buffer.getvalue()
    else:
        from ckptcheck.reporters import render

        content = render(format, reports, rules).rstrip("\n") + "\n"
        if refresh is not None:
            mark = '<meta charset="utf-8">'
            content = content.replace(mark, f'{mark}\n<meta http-equiv="refresh" content="{refresh}">', 1)
    if output is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # whatever the code page of the console is: the XML declares UTF-8
            sys.stdout.reconfigure(encoding="utf-8")
        sys.stdout.write(content)
        return
    from ckptcheck.text.file_io import replace_file

    replace_file(output, content.encode())


def finish(
    result: Report | Reports,
    outputs: Sequence[tuple[str, Path | None]],
    fail_on: FailOn | None = None,
    *,
    verbose: bool = False,
    quiet: bool = False,
    record_error: CkptcheckError | None = None,
    was_interrupted: bool = False,
) -> NoReturn:
    """Write the report, and end the command with its exit code.

    Where an output file can no longer be written, the report goes to stdout and the exit code is 2: the work may have taken
    hours. After Ctrl-C, which leaves a report of what was done before it, the exit code is 130.

    Args:
        result: what to write.
        outputs: (format, file) of each form to write; None: stdout.
        fail_on: the lightest severity that makes the exit code 1; None: the one that the settings name.
        verbose: list the rules that passed, too.
        quiet: print the verdict only.
        record_error: why the record of the syncs could not be written, which makes the exit code 2.
        was_interrupted: Ctrl-C ended the work, and this is what was known by then.

    """
    reports = _list_reports(result)
    messages = [record_error.message] if record_error is not None else []
    for form, output in outputs:
        try:
            write_reports(reports, reports[0].rules, form, output, verbose=verbose, quiet=quiet)
        except (CkptcheckError, OSError) as error:
            if output is None:
                raise
            messages.append(
                error.message if isinstance(error, CkptcheckError) else f"cannot write {output}: {error.strerror}"
            )
            write_reports(reports, reports[0].rules, form, None, verbose=verbose, quiet=quiet)
    sys.stdout.flush()
    for message in messages:
        log(f"ckptcheck: {message}")
    if outputs[0][1] is not None and not messages:
        has_findings = all(form != "text" for form, _ in outputs) and not quiet
        _say_what(reports, join_words([str(output) for _, output in outputs]), has_findings=has_findings)
    code = 2 if messages else result.exit_code(fail_on)
    raise Exit(INTERRUPTED if code == 2 and (was_interrupted or SignalGuard.was_interrupted) else code)


def _list_reports(result: Report | Reports) -> Sequence[Report]:
    return [result] if isinstance(result, Report) else result.reports


def _say_what(reports: Sequence[Report], files: str, *, has_findings: bool) -> None:
    """Log for a person whose report went to files: the findings, if these are for programs, the verdict, and the files."""
    from ckptcheck.reporters.text import describe_verdicts, write_findings

    told: dict[Finding, str] = {}
    for report in reports if has_findings else ():
        if (report.findings and not (len(reports) > 1 and only_informs(report))) or (report.error and len(reports) > 1):
            log(f"{report.target}: {report.error}" if report.error else report.target)
            write_findings(report, sys.stderr, told)
    log(f"{describe_verdicts(reports)} · the report is {files}")


BAR_DELAY = 0.5
"""Seconds before a progress bar appears: most scans are over by then."""


COLUMNS_WIDTH, LEAST_LABEL = 72, 10
"""Characters for the bar and its numbers (amounts, speed, time, time left), and the fewest characters of a label."""
LINE_INTERVAL = 30.0
"""Seconds between two lines about the progress, or about a phase, in a job's log, where stderr is no terminal."""


@contextmanager
def progress_bar(
    target: str, *, bytewise: bool = True, announce: Callable[[], None] = lambda: None
) -> Iterator[Advance]:
    """Show a progress bar with speed, time and time left while the block runs; without a terminal, a line now and then.

    Gives the function to call with how much is done and how much there is in all. bytewise: the work counts bytes, else items.
    announce: called before the bar or the first line appears.
    """
    if not sys.stderr.isatty():
        yield log_progress(target, bytewise=bytewise, announce=announce)
        return
    start_time = time.monotonic()
    bars: list[Progress] = []

    def advance(done: int, total: int) -> None:
        if not bars and time.monotonic() - start_time > BAR_DELAY:
            announce()
            bars.append(_create_bar(target, bytewise))
        if bars:
            bars[0].update(bars[0].task_ids[0], completed=done, total=total)

    try:
        yield advance
    finally:
        for bar in bars:
            bar.stop()


def log_progress(
    target: str,
    *,
    bytewise: bool,
    clock: Callable[[], float] = time.monotonic,
    announce: Callable[[], None] = lambda: None,
) -> Advance:
    """Return a function that writes a line about the progress when LINE_INTERVAL has passed since the last one.

    bytewise: the work counts bytes, else items. clock: gives the seconds since some moment.
    """
    start_time = clock()
    line_time = start_time

    def advance(done: int, total: int) -> None:
        nonlocal line_time
        now = clock()
        if now - line_time < LINE_INTERVAL or not 0 < done < total:
            return
        if line_time == start_time:
            announce()
        line_time = now
        numbers = (format_bytes(done), format_bytes(total)) if bytewise else (f"{done:,}", f"{total:,}")
        seconds = now - start_time
        left = format_duration(seconds * (total - done) / done)
        log(
            f"{target}: {100 * done / total:.0f} % done after {format_duration(seconds)}, {numbers[0]} of {numbers[1]},"
            f" about {left} left"
        )

    return advance


def shorten_label(label: str, room: int) -> str:
    """Return a label that leaves the numbers beside it their room: paths lose their folders, then the start is cut.

    >>> shorten_label("/models/base ↔ /models/tuned", 20), shorten_label("/models/a-very-long-name", 10)
    ('base ↔ tuned', '…long-name')
    """
    if len(label) <= room:
        return label
    named = " ".join(word.rstrip("/").rpartition("/")[2] or word for word in label.split(" "))
    most = max(room, LEAST_LABEL)
    return named if len(named) <= most else f"…{named[1 - most :]}"


def _create_bar(target: str, bytewise: bool) -> Progress:
    from rich import progress
    from rich.console import Console

    from ckptcheck.reporters.printable import printable

    counter: tuple[progress.ProgressColumn, ...] = (progress.MofNCompleteColumn(),)
    if bytewise:
        counter = (progress.DownloadColumn(), progress.TransferSpeedColumn())
    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=20),
        *counter,
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    bar = progress.Progress(*columns, console=console, transient=True)
    bar.add_task(shorten_label(printable(target), console.width - COLUMNS_WIDTH), total=None)
    bar.start()
    return bar


SHORT = 0.5
"""Longest phase, in seconds, whose time is not shown."""


@contextmanager
def follow_phase(label: str, most: float | None) -> Iterator[None]:
    """Announce a phase of unknown length, and say while the block runs how long it has taken.

    most: seconds after which it is given up, None if unknown.
    """
    if sys.stderr.isatty():
        with _show_line(label, most):
            yield
        return
    log(label)
    is_over = threading.Event()
    speaker = threading.Thread(target=repeat_line, args=(label, most, is_over.wait), daemon=True)
    speaker.start()
    try:
        yield
    finally:
        is_over.set()
        speaker.join()


def repeat_line(
    label: str,
    most: float | None,
    wait: Callable[[float], bool],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Write a line each LINE_INTERVAL until the phase is over.

    wait: waits for so many seconds, and returns whether the phase is over. clock: gives the seconds since some moment.
    """
    start_time = clock()
    while not wait(LINE_INTERVAL):
        log(f"  {describe_time(label, clock() - start_time, most)}")


def describe_time(label: str, seconds: float, most: float | None) -> str:
    """Say how long a phase has taken, and what is left to it.

    >>> describe_time("cold load", 30, 600)
    'cold load: 30 seconds so far, at most 10 minutes left'
    """
    left = "" if most is None else f", at most {format_duration(max(most - seconds, 0))} left"
    return f"{label}: {format_duration(seconds)} so far{left}"


@contextmanager
def _show_line(label: str, most: float | None) -> Iterator[None]:
    """Show a spinner with the time; afterwards the phase stands there with the time that it took."""
    from rich import progress
    from rich.console import Console

    from ckptcheck.reporters.printable import printable

    columns = (
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}", markup=False),
        progress.TimeElapsedColumn(),
        progress.TextColumn("" if most is None else f"at most {format_duration(most)}"),
    )
    start_time = time.monotonic()
    line = progress.Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4)
    line.add_task(printable(label), total=None)
    line.start()
    try:
        yield
    finally:
        line.stop()
        seconds = time.monotonic() - start_time
        log(label + (f" ({format_duration(seconds)})" if seconds > SHORT else ""))


class TerminalObserver(Observer):
    """Shows messages and progress of long work on stderr, and keeps what is known before its end."""

    def __init__(self) -> None:
        self.known: dict[str, Report] = {}
        """Target → its report, or what is known of it while its values are being read."""
        self._kept: object = None

    def note_report(self, report: object) -> None:
        """Keep the report, for progress that takes long and for Ctrl-C."""
        assert isinstance(report, Report)
        self.known[report.target] = report

    def keep(self, evidence: object) -> None:
        """Keep the evidence until the next target or the exit: to free a million tensors takes 0.2 seconds."""
        self._kept = evidence

    def log(self, message: str) -> None:
        """Write a message to stderr."""
        log(message)

    def progress(self, label: str, *, bytewise: bool = True) -> contextlib.AbstractContextManager[Advance | None]:
        """Show a progress bar, or write a line now and then, and before it what is known by then."""
        return progress_bar(label, bytewise=bytewise, announce=lambda: self._announce(label))

    def _announce(self, target: str) -> None:
        """Write the findings that are known, since the rest takes long."""
        if (report := self.known.get(target)) is not None and report.findings:
            from ckptcheck.reporters.text import write_findings

            log(f"{target}: found in the headers so far:")
            write_findings(report, sys.stderr)

    def phase(self, label: str, most: float | None = None) -> contextlib.AbstractContextManager[None]:
        """Show the time that a phase has taken, and the time left."""
        return follow_phase(label, most)


TERMINAL = TerminalObserver()
