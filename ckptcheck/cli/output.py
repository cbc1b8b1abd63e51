"""stdout is the report, stderr is the talk."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ckptcheck.report import Report
from ckptcheck.rule import Rule


def talk(message: str) -> None:
    """Say something to the person at the terminal."""
    from ckptcheck.reporters.printable import printable

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


@contextmanager
def progress_bar(target: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show how far reading has come, with speed and time left, on a terminal; nothing where stderr is none."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from ckptcheck.reporters.printable import printable

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(target).replace("[", "\\["), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
