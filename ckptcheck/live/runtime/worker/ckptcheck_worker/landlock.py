"""Has the Linux kernel refuse, for good, every file outside some folders, whether Python, C or Rust opens it.

Source: landlock(7) and linux/landlock.h (Linux 5.13 and later, where the module is switched on). The numbers of the
calls are the same on every machine. Files that are open already stay open, and running threads are not bound.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG, PATH_BENEATH = 1, 1
PR_SET_NO_NEW_PRIVS = 38
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REFER, TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 13, 1 << 14
REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
"""Rights to remove files and folders, and to make any kind of them."""
READING = EXECUTE | READ_FILE | READ_DIR
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
"""Rights that may be given on something that is no folder."""


def landlock_version() -> int:
    """Return the version of this kernel's Landlock; 0 if it has none, or has it switched off."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, _call(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(VERSION_FLAG)))


def restrict_files(readable: Iterable[str], writable: Iterable[str]) -> bool:
    """Let this thread, and those that it starts, open only what lies in these folders; return whether the kernel could.

    It skips folders that do not exist. Writable folders are readable too.
    """
    if not (version := landlock_version()):
        return False
    handled = (
        READING | WRITE_FILE | REMOVE_AND_MAKE | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    )
    attributes = struct.pack("=Q", handled)
    ruleset = _call(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    if ruleset < 0:
        return False
    try:
        for paths, rights in ((readable, READING), (writable, handled)):
            for path in paths:
                with suppress(OSError):
                    _allow(ruleset, path, rights)
        if ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            return False
        return _call(RESTRICT_SELF, ruleset, ctypes.c_uint(0)) == 0
    finally:
        os.close(ruleset)


def describe_landlock() -> tuple[bool, str]:
    """Return whether the kernel restricts the loaders of a dry load, and how, for ``ckptcheck doctor``."""
    if version := landlock_version():
        return (
            True,
            f"a dry load opens no files but the checkpoint's, its libraries' and temporary ones (Landlock {version})",
        )
    return (
        False,
        "this kernel has no Landlock: in a dry load only what Python opens is watched, not libraries in C or Rust",
    )


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Add a rule for a path and everything beneath it. Raises OSError if it cannot be opened."""
    place = os.open(path.rstrip(os.sep) or os.sep, os.O_PATH | os.O_CLOEXEC)
    try:
        given = rights if os.path.isdir(path) else rights & OF_FILES
        rule = struct.pack("=Qi", given, place)
        if _call(ADD_RULE, ruleset, ctypes.c_uint(PATH_BENEATH), rule, ctypes.c_uint(0)):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(place)


def _call(number: int, *arguments: object) -> int:
    """Make a system call without a function in the C library; -1 if the kernel refuses it or lacks it."""
    return int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *arguments))
