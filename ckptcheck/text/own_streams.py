"""Finds the stream of this process that a path leads to, such as ``/dev/stdout``, and says whether it was closed at the start."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

FOLDER = re.compile(r"/dev/fd|/proc/(self|thread-self|[0-9]+|[0-9]+/task/[0-9]+)/fd")
"""The folders in which a process finds its own streams by number; each process sees only its own streams there."""
MOST_LINKS = 40
"""Most links that are followed one after the other, as in Linux."""
NAMES = {0: "standard input", 1: "standard output", 2: "standard error"}


def find_own_stream(path: Path) -> int | None:
    """Return the number of the stream of this process that a path leads to, or None.

    The stream itself may be a link again, to the file into which a shell has redirected it.
    """
    place = os.path.abspath(path)
    for _ in range(MOST_LINKS):
        folder, name = os.path.realpath(os.path.dirname(place)), os.path.basename(place)
        if FOLDER.fullmatch(folder) and name.isdecimal():
            return int(name) if _is_own(folder) else None
        try:
            goal = os.readlink(os.path.join(folder, name))
        except (OSError, ValueError):  # no link; a name with a NUL
            return None
        place = os.path.join(folder, goal)
    return None


def explain_closed_stream(path: Path) -> str | None:
    """Explain that a path leads to a standard stream that was closed when this process began; else return None.

    Something else has taken its number since then, the null device or any file, so no reader would get the output.
    """
    number = find_own_stream(path)
    streams = {0: sys.__stdin__, 1: sys.__stdout__, 2: sys.__stderr__}
    if number not in streams or streams[number] is not None:
        return None
    return f"{NAMES[number]} is closed"


def _is_own(folder: str) -> bool:
    number = next((part for part in folder.split("/") if part.isdecimal()), None)
    return number in (None, str(os.getpid()))
