"""Keeps a dry load from files and addresses outside the checkpoint: a config, an index or an adapter may name any.

A checkpoint runs no code here, so its loader opens files through Python, whose audit events nothing can turn off again;
a refusal names the file. Readers in Rust or C get file names from `valueless_files`, which asks `require_inside`
itself. If the kernel has Landlock, it refuses every other file that they open.
"""

from __future__ import annotations

import errno
import os
import site
import sys
import sysconfig
import tempfile
from typing import Any

from .landlock import restrict_files

SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/proc", "/sys", "/dev", "/System", "/Library")
"""Folders of the machine in which libraries look up the processor, and further libraries."""
SETTINGS = "/etc"
"""Paths where the C library looks for names of users, time zones and its own libraries; a Python loader reads nothing
there."""
WRITTEN = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
LISTED = ("os.listdir", "os.scandir")

_readable: tuple[str, ...] = ()
_writable: tuple[str, ...] = ()


class OutsideRead(PermissionError):
    """A loader asked for a file or address that does not belong to the checkpoint."""


def stay_inside(folder: str) -> None:
    """From now on let this process open only the files of a folder, its own libraries and temporary files; for good."""
    global _readable, _writable
    is_first = not _readable
    own = [tempfile.gettempdir(), os.getcwd(), "/dev/null", "/dev/shm"]
    libraries = [sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *site.getsitepackages(), *sys.path]
    _writable = tuple(map(_as_folder, own))
    _readable = (_as_folder(folder), *_writable, *map(_as_folder, filter(None, libraries)), *map(_as_folder, SYSTEM))
    if is_first:
        restrict_files((*_readable, SETTINGS), _writable)
        sys.addaudithook(_watch)


def require_inside(path: Any) -> None:
    """Raise OutsideRead for an existing file outside the allowed folders. Before `stay_inside` all are allowed."""
    if not _readable or isinstance(path, int) or path is None:
        return
    found = os.path.realpath(os.fsdecode(path))
    # the loader itself reports a missing file
    if not _lies_in(found, _readable) and os.path.lexists(found):
        raise _refuse(path)


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        path, mode, flags = arguments
        is_written = bool(flags & WRITTEN) if isinstance(flags, int) else bool(set(mode or "r") & set("wax+"))
        if is_written and isinstance(path, (str, bytes)):
            if not _lies_in(os.path.realpath(os.fsdecode(path)), _writable):
                raise _refuse(path)
        elif isinstance(path, (str, bytes)):
            require_inside(path)
    elif event in LISTED:
        require_inside(arguments[0])
    elif event == "socket.connect":
        address = arguments[1]
        if isinstance(address, tuple) and address[:1] not in (("127.0.0.1",), ("::1",), ("localhost",)):
            raise _refuse(str(address[0]))


def _refuse(what: Any) -> OutsideRead:
    return OutsideRead(errno.EACCES, "a dry load opens nothing outside the checkpoint", os.fsdecode(what))


def _as_folder(path: str) -> str:
    return os.path.realpath(path).rstrip(os.sep) + os.sep


def _lies_in(path: str, folders: tuple[str, ...]) -> bool:
    return (path.rstrip(os.sep) + os.sep).startswith(folders)
