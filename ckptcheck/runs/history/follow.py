"""Follows the record of a job that runs: the history again whenever a sync was added."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.runs.history.history import History, open_history
from ckptcheck.text.file_io import read_regular_file

INTERVAL = 1.0
"""Seconds between two looks at the file."""


def follow_history(path: Path, wait: Callable[[], object] = lambda: time.sleep(INTERVAL)) -> Iterator[History]:
    """Yield the history of a record now and whenever the file has changed, for ever. A job may begin the record later.

    A file that holds no whole sync yet is waited for. wait: returns when it is time to look again.
    Raises CkptcheckError where the file cannot be read, or is not a record although it has whole lines.
    """
    known: tuple[int, int, int] | None = None
    while True:
        try:
            status = os.stat(path)
            state = (status.st_ino, status.st_size, status.st_mtime_ns)
        except FileNotFoundError:
            state = None
        if state is not None and state != known and (state[1] or not stat.S_ISREG(status.st_mode)):
            known = state
            history = _open_unless_begun(path)
            if history is not None:
                yield history
        wait()


def _open_unless_begun(path: Path) -> History | None:
    """Return the history, None where the first sync is being written."""
    try:
        return open_history(path)
    except CkptcheckError:
        with suppress(OSError):
            if b"\n" not in read_regular_file(os.path.realpath(path), 1 << 20):
                return None
        raise
