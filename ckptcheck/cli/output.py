"""stdout is the report, stderr is the talk."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from ckptcheck.errors import CkptcheckError
from ckptcheck.report import FailOn, Report
from ckptcheck.rule import Rule

if TYPE_CHECKING:
    from rich.progress import Progress


def talk(message: str) -> None:
    """Say something to the person at the terminal, who may have left."""
    from ckptcheck.reporters.printable import printable

    with contextlib.suppress(OSError):
        sys.stderr.write(printable(message) + "\n")


def deliver(
    reports: Sequence[Report], rules: Sequence[Rule], form: str, output: Path | None, *, verbose: bool = False
) -> None:
    """Write the reports in the given form to stdout, or to a file whole or not at all."""
    if form == "text":
        from ckptcheck.reporters import text

        if output is None:
            text.write(reports, rules, sys.stdout, verbose=verbose)
            return
        buffer = io.StringIO()
        text.write(reports, rules, buffer, verbose=verbose)
        content = buffer.getvalue()
    else:
        from ckptcheck.reporters import render

        content = render(form, reports, rules).rstrip("\n") + "\n"
    if output is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # whatever the console's code page: the XML says so
        sys.stdout.write(content)
        return
    from ckptcheck.writing import replace_file

    replace_file(output, content.encode())


def conclude(
    report: Report,
    rules: Sequence[Rule],
    form: str,
    output: Path | None,
    fail_on: FailOn,
    *,
    verbose: bool = False,
    unwritten: CkptcheckError | None = None,
) -> NoReturn:
    """Write the report of what took minutes, and end the command with its exit code.

    Where the file cannot be written any more, the report goes to stdout. unwritten: what else could not be. Both end with 2.
    """
    troubles = [unwritten.message] if unwritten is not None else []
    try:
        deliver([report], rules, form, output, verbose=verbose)
    except (CkptcheckError, OSError) as error:
        if output is None:
            raise
        troubles.append(
            error.message if isinstance(error, CkptcheckError) else f"cannot write {output}: {error.strerror}"
        )
        deliver([report], rules, form, None, verbose=verbose)
    sys.stdout.flush()
    for trouble in troubles:
        talk(f"ckptcheck: {trouble}")
    raise typer.Exit(2 if troubles else report.exit_code(fail_on))


PATIENCE = 0.5
"""Seconds before a progress bar appears: most scans are over by then."""


@contextmanager
def progress_bar(target: str, *, bytewise: bool = True) -> Iterator[Callable[[int, int], None] | None]:
    """Show how far reading has come, with speed and time left, on a terminal; nothing where stderr is none.

    `bytewise`: what is counted are bytes, else files.
    """
    if not sys.stderr.isatty():
        yield None
        return
    began = time.monotonic()
    bars: list[Progress] = []

    def advance(done: int, total: int) -> None:
        if not bars and time.monotonic() - began > PATIENCE:
            bars.append(_bar(target, bytewise))
        if bars:
            bars[0].update(bars[0].task_ids[0], completed=done, total=total)

    try:
        yield advance
    finally:
        for bar in bars:
            bar.stop()


def _bar(target: str, bytewise: bool) -> Progress:
    from rich import progress
    from rich.console import Console

    from ckptcheck.reporters.printable import printable

    counted: tuple[progress.ProgressColumn, ...] = (progress.MofNCompleteColumn(),)
    if bytewise:
        counted = (progress.DownloadColumn(), progress.TransferSpeedColumn())
    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        *counted,
        progress.TimeRemainingColumn(),
    )
    bar = progress.Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task(printable(target), total=None)
    bar.start()
    return bar
