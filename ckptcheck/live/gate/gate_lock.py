"""Keeps two gates from writing to one folder: a job of several nodes may start the gate on each."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.file_io import open_lock_file


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
