"""Gives every process a record of its own: two ranks with the same file name never write to one file.

A process claims its file by a lock on ``.NAME.lock`` beside it, which the system releases when the process ends, however it
ends. So a worker that is started again continues its record, and so does one that was forked after the watch was made. A process
that finds the file claimed writes to ``NAME.rank3.jsonl``, or to ``NAME.2.jsonl`` where it has no rank.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ckptcheck.text.file_io import open_lock_file

MOST = 4096
"""Names to try for one record: as many as a large job has ranks."""
_claimed: dict[tuple[int, Path], int] = {}
"""Process and file → the open lock. Closing it would release the claim."""


def claim_record(path: Path) -> Path:
    """Return the file that this process may write: `path`, or one beside it if another living process has claimed that.

    Raises OSError if all names are taken.
    """
    for candidate in itertools.islice(_names(path), MOST):
        if _claim(candidate):
            return candidate
    raise OSError(f"{MOST:,} processes write records beside {path}")


def _names(path: Path) -> Iterator[Path]:
    yield path
    rank = _rank()
    if rank is not None:
        yield path.with_name(f"{path.stem}.rank{rank}{path.suffix}")
    for number in itertools.count(2):
        yield path.with_name(f"{path.stem}.{number}{path.suffix}")


def _claim(path: Path) -> bool:
    try:
        import fcntl
    except ImportError:
        return True
    if (os.getpid(), path) in _claimed:
        return True
    try:
        handle = open_lock_file(path.with_name(f".{path.name}.lock"))
    except OSError:  # the record cannot be written either, which its own error says better
        return True
    try:
        # of the process and not of the open file: a child that is forked does not inherit it
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(handle)
        return False
    except OSError:  # a file system without locks
        os.close(handle)
        return True
    _claimed[os.getpid(), path] = handle
    return True


def _rank() -> int | None:
    """Return the rank of this process in its job, None if it has none."""
    distributed: Any = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() else None
