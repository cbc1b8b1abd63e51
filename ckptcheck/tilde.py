"""What a ``~`` at the beginning of a path stands for."""

from __future__ import annotations

import os


def expanded(path: str) -> str:
    """Return a path with the home folder in place of ``~`` or ``~user``; as it is where there is no such user."""
    try:
        return os.path.expanduser(path)
    except ValueError:  # half a surrogate pair or a NUL, which no user's name holds
        return path
