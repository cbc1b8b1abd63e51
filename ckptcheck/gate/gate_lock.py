"""Keeps two gates from writing to one folder: a job of several nodes may start the gate on each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ckptcheck.errors import CkptcheckError


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the folder until the block ends; the system frees it where the process dies. Raises CkptcheckError where it is held."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with open(folder / "lock", "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CkptcheckError(
                f"another gate is at work in {folder}", hint="start the gate on one node, or give each a --folder"
            ) from error
        except OSError:
            pass  # a file system without locks
        yield
