"""What the system says of a file, by which a change of its bytes is seen without reading them again."""

from __future__ import annotations

import os
from typing import NamedTuple


class FileState(NamedTuple):
    """What was known of a file at one moment."""

    size: int
    """Bytes."""
    written: int
    """When its bytes were written last, in nanoseconds. Whoever writes may set it back (``cp -p``, ``rsync --times``)."""
    changed: int
    """When anything of it was changed last, its rights and its names as well. Nobody can set it back."""
    others: tuple[int, ...]
    """Its rights, its owners and the number of its names, whose changes alone say nothing of its bytes."""


def describe_state(status: os.stat_result) -> FileState:
    """Return the state of a file."""
    others = (status.st_mode, status.st_uid, status.st_gid, status.st_nlink)
    return FileState(status.st_size, status.st_mtime_ns, status.st_ctime_ns, others)


def is_rewritten(before: FileState, after: FileState) -> bool:
    """Whether the bytes of a file may be others than before.

    A file that got or lost a name (``cp -l``), other rights or another owner, and has its size and its time, counts as the same; so
    does one with several names, which may have got one and lost another.

    >>> listed = FileState(8, 100, 100, (0o644, 0, 0, 1))
    >>> [is_rewritten(listed, FileState(8, 100, 200, (r, 0, 0, n))) for r, n in ((0o644, 1), (0o600, 1), (0o644, 2))]
    [True, False, False]
    >>> shared = listed._replace(others=(0o644, 0, 0, 3))
    >>> is_rewritten(shared, shared._replace(changed=200))
    False
    """
    if (before.size, before.written) != (after.size, after.written):
        return True
    return before.changed != after.changed and before.others == after.others and after.others[-1] == 1
