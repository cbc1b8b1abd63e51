"""Shows how long a phase of unknown length has run: a moving line in a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ckptcheck.text.formatting import format_duration

Say = Callable[[str], None]
LINE_INTERVAL = 30.0
"""Seconds between two lines about a phase in a job's log, where stderr is no terminal."""
SHORT = 0.5
"""Longest phase, in seconds, whose time is not shown."""


@contextmanager
def follow_phase(label: str, most: float | None, say: Say) -> Iterator[None]:
    """Announce a phase, and say while the block runs how long it has taken.

    most: seconds after which it is given up, None if unknown. say: writes a line to stderr.
    """
    if sys.stderr.isatty():
        with _show_line(label, most, say):
            yield
        return
    say(label)
    is_over = threading.Event()
    speaker = threading.Thread(target=repeat_line, args=(label, most, is_over.wait, say), daemon=True)
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
    say: Say,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Write a line each LINE_INTERVAL until the phase is over.

    wait: waits for so many seconds, and returns whether the phase is over. clock: gives the seconds since some moment.
    """
    start_time = clock()
    while not wait(LINE_INTERVAL):
        say(f"  {describe_time(label, clock() - start_time, most)}")


def describe_time(label: str, seconds: float, most: float | None) -> str:
    """Say how long a phase has taken, and what is left to it.

    >>> describe_time("cold load", 30, 600)
    'cold load: 30 seconds so far, at most 10 minutes left'
    """
    left = "" if most is None else f", at most {format_duration(max(most - seconds, 0))} left"
    return f"{label}: {format_duration(seconds)} so far{left}"


@contextmanager
def _show_line(label: str, most: float | None, say: Say) -> Iterator[None]:
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
        say(label + (f" ({format_duration(seconds)})" if seconds > SHORT else ""))
