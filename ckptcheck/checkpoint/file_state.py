"""What the system says of a file, by which a change of its bytes is seen without reading them again."""

from __future__ import annotations

import os
from typing import NamedTuple


class FileState(NamedTuple):
    """What was known of a file at one moment.

    The time of its last change is no part of it: linked copies of a model (``cp -l``) that come and go change that, and no byte.
    """

    size: int
    """Bytes."""
    written: int
    """When its bytes were written last, in nanoseconds. Whoever writes may set it back (``cp -p``, ``rsync --times``)."""
    node: tuple[int, int]
    """Its device and its number there: another file under its name has another one, mostly."""


def describe_state(status: os.stat_result) -> FileState:
    """Return the state of a file."""
    return FileState(status.st_size, status.st_mtime_ns, (status.st_dev, status.st_ino))


def is_rewritten(before: FileState, after: FileState) -> bool:
    """Whether the bytes of a file may be others than before.

    >>> listed = FileState(8, 100, (1, 7))
    >>> [is_rewritten(listed, other) for other in (listed, listed._replace(written=200), listed._replace(node=(1, 8)))]
    [False, True, True]
    """
    return before != after
