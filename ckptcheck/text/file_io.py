"""Writes a file whole or not at all, reads regular files only, and expands ``~`` in paths."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ckptcheck.errors import CkptcheckError, OutputError, UsageError
from ckptcheck.text.model_files import refuse_model_file
from ckptcheck.text.own_streams import explain_closed_stream, find_own_stream


def expand_home(path: str) -> str:
    """Replace a leading ``~`` or ``~user`` by the home folder; a path of an unknown user stays as it is."""
    try:
        return os.path.expanduser(path)
    except ValueError:
        # Half a surrogate pair or a NUL, which no user's name contains.
        return path


def real_path(path: str | Path) -> Path:
    """Return an absolute path without links; at a link to itself, the path as far as it can be followed.

    `Path.resolve` raises RuntimeError at such a link until Python 3.12, and any folder may hold one.
    """
    return Path(os.path.realpath(path))


def path_exists(path: Path) -> bool:
    """Return whether a path exists. Raises OSError if that is unknown, as in a folder without permission.

    `Path.exists` returns False in that case since Python 3.14.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a name with a NUL
        return False
    return True


def open_regular_file(path: str | Path) -> int:
    """Open a file for reading and return its descriptor; never a link, nor a pipe or a device, which may have no end.

    A file may have been exchanged since its folder was listed, so this checks the open descriptor, not the path.
    `os.open` takes a third of the time of `open`, and sampling values takes thousands of reads. Raises OSError.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # Windows has neither
    try:
        file = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it has become a link since it was listed") from error
        raise
    mode = os.fstat(file).st_mode
    if stat.S_ISREG(mode):
        return file
    os.close(file)
    what = "a folder" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device or a socket"
    raise OSError(errno.EINVAL, f"it is {what}, not a file")


def open_regular_file_to_append(path: str | Path) -> int:
    """Open or create a file for appending and return its descriptor; never a link, a pipe or a device. Raises OSError."""
    return _open_or_create(path, os.O_WRONLY | os.O_APPEND)


def open_lock_file(path: str | Path) -> int:
    """Open or create the file of a lock and return its descriptor; never a link, nor a pipe, which would wait for a reader.

    Raises OSError.
    """
    return _open_or_create(path, os.O_RDWR)


def _open_or_create(path: str | Path, flags: int) -> int:
    flags |= os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    file = os.open(path, flags, 0o666)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(errno.EINVAL, "it is no regular file")


PIECE = 1 << 20
"""Bytes of one read from a file on a disk or from a pipe."""


def read_to_parse(
    read: Callable[[int], bytes | None], most: int, piece: int = PIECE, *, is_text: bool = True
) -> tuple[bytes, bool]:
    """Return up to `most` bytes of a file that is parsed, and whether a hole ended the reading before.

    Every file that is parsed is read here. A sparse file costs its maker nothing and has little else than zero bytes, and no
    text has any: of a text nothing is read behind the first piece with one.

    read: returns up to so many of the next bytes. Raises what that raises, and OSError if it returns None: a read would wait.
    """
    content = read(min(most, piece))
    if content is None:  # /proc/kmsg poses as a regular file
        raise OSError(errno.EAGAIN, "it has nothing to read now")
    part: bytes | None = content
    pieces, rest = None, most - len(content)
    while part and rest > 0 and (following := read(min(rest, piece))):
        if is_text and b"\0" in part:
            return content if pieces is None else pieces.getvalue(), True
        if pieces is None:
            pieces = io.BytesIO()  # joining a list of pieces would take the memory twice
            pieces.write(content)
        pieces.write(following)
        part, rest = following, rest - len(following)
    return content if pieces is None else pieces.getvalue(), False


def open_regular_stream(path: str | Path) -> BinaryIO:
    """Open a file that the user named, or one that a link names, for reading; never a pipe or a device. Raises OSError."""
    return os.fdopen(open_regular_file(os.path.realpath(path)), "rb")


def read_regular_file(path: str | Path, most: int, *, is_text: bool = True) -> bytes:
    """Return the first `most` bytes of a file that `open_regular_file` opens. Raises OSError, also for a text with holes."""
    with os.fdopen(open_regular_file(path), "rb") as file:
        return _read_up_to(file, most, is_text=is_text)


def _read_up_to(file: BinaryIO, most: int, *, is_text: bool = True) -> bytes:
    size = os.fstat(file.fileno()).st_size  # a read of a whole piece would allocate one for each small file
    content, is_cut = read_to_parse(file.read, most, min(PIECE, size + 1) if size else PIECE, is_text=is_text)
    if is_cut:
        raise OSError(errno.EINVAL, "it holds bytes that are zero, which no such file does")
    return content


def read_whole_file(path: str | Path, most: int) -> bytes:
    """Return the content of a text that the user named, which may be a link or a pipe.

    Raises OSError, also for a pipe without a writer, and for more than `most` bytes: a device has no end, and a sparse file
    costs its maker nothing.
    """
    with os.fdopen(_open_with_writer(path), "rb") as file:
        state = os.fstat(file.fileno())
        is_larger = stat.S_ISREG(state.st_mode) and state.st_size > most
        content = b"" if is_larger else _read_up_to(file, most + 1)
    if is_larger or len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes, which no such file has")
    return content


def _open_with_writer(path: str | Path) -> int:
    """Open a file for reading and return its descriptor; a pipe only if a process has it open for writing. Raises OSError."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        if stat.S_ISFIFO(os.fstat(file).st_mode):
            waiting = select.poll()
            waiting.register(file, select.POLLIN)
            if not waiting.poll(WRITER_PATIENCE * 1000):
                with contextlib.suppress(BlockingIOError):  # a process has it open, but has written nothing yet
                    os.read(file, 1)
                    raise OSError(errno.EPIPE, "it is a pipe into which nobody writes")
        os.set_blocking(file, True)
    except BaseException:
        os.close(file)
        raise
    return file


WRITER_PATIENCE = 4.0
"""Seconds within which another process has to open a pipe for writing."""
LARGEST_JSON = 1 << 28
"""Most bytes of a JSON file that are read."""


def read_json_file(path: str | Path, most: int = LARGEST_JSON) -> Any:
    """Return the value of a JSON file, also through a link; never of a pipe or a device, which may have no end.

    Raises OSError, also for a file of more than `most` bytes, and ValueError if it is no JSON or nested too deep.
    """
    raw = read_regular_file(os.path.realpath(path), most + 1)
    if len(raw) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes, which no such file has")
    try:
        return json.loads(raw)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def replace_file(path: Path, content: bytes) -> None:
    """Write to a temporary file beside `path` and rename it over `path`, keeping the permissions of an existing file.

    Raises CkptcheckError if the folder cannot be written to. Leaves nothing half-written, also on Ctrl-C.
    """
    with open_for_replace(path) as temporary:
        temporary.write_bytes(content)


def _is_stream(path: Path) -> bool:
    """Whether a path is a pipe, a device, or a stream of this process, which is written to and never replaced.

    /dev/stdout is a link, and leads to a regular file if the shell has redirected it.
    """
    if find_own_stream(path) is not None:
        return True  # also if the stream is closed, because root would replace the link for every process
    return path.exists() and not path.is_file()


def require_output_apart(output: Path | None, *inputs: Path | None) -> None:
    """Raise UsageError if the output would overwrite an input: a file, or one in a checkpoint's folder; and for a model's file."""
    if output is None or not output.is_file():
        return
    for path in inputs:
        if path is None or not path.exists():
            continue
        if output.samefile(path) or (path.is_dir() and real_path(output).parent == real_path(path)):
            raise UsageError(
                f"{output} is what the command reads, and would be overwritten", hint="give -o another name"
            )
    refuse_model_file(output)


def require_distinct_outputs(outputs: dict[str, Path | None]) -> None:
    """Raise UsageError if two options (name → path) would write the same file: the second would overwrite the first."""
    seen: dict[Path, str] = {}
    for option, path in outputs.items():
        if path is None or (path.exists() and not path.is_file()):  # /dev/stdout takes both
            continue
        if (other := seen.setdefault(real_path(path), option)) is not option:
            raise UsageError(f"{other} and {option} would both write {path}", hint="give one of them another name")


def require_writable(output: Path | None) -> None:
    """Raise OutputError if a file cannot be written, before the work that produces its content; UsageError for a model's file."""
    refuse_model_file(output)
    if output is None:
        return
    if (closed := explain_closed_stream(output)) is not None:
        raise OutputError(f"cannot write {output}: {closed}")
    if _is_stream(output) and not output.is_dir():
        return
    if output.is_dir():
        raise OutputError(f"cannot write {output}: it is a folder")
    import tempfile

    try:
        with tempfile.NamedTemporaryFile(prefix=f".{output.name}.", dir=output.parent):
            pass
    except OSError as error:
        raise OutputError(f"cannot write {output}: {error.strerror or error}") from error


@contextlib.contextmanager
def open_for_replace(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path` to write to, and rename it over `path` afterwards; for content beyond memory.

    A stream of this process, a pipe and a device are written to afterwards.

    Raises CkptcheckError and leaves no partial file, like `replace_file`.
    """
    import tempfile

    temporary = None
    try:
        if (closed := explain_closed_stream(path)) is not None:
            raise OSError(errno.EBADF, closed)
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
        is_stream = _is_stream(path)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=None if is_stream else path.parent)
        os.close(handle)
        yield Path(temporary)
        if is_stream:
            import shutil

            for stream_of_ours in filter(None, (sys.stdout, sys.stderr)):
                stream_of_ours.flush()
            with open(temporary, "rb") as file, os.fdopen(_open_with_reader(path), "wb") as stream:
                shutil.copyfileobj(file, stream)
            return
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise CkptcheckError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _open_with_reader(path: Path) -> int:
    """Open a stream for writing and return its descriptor; a pipe only if a process opens it for reading. Raises OSError.

    A stream of this process keeps its position: opened anew, a redirected file would be overwritten from its start.
    """
    if (number := find_own_stream(path)) is not None:
        return os.dup(number)
    if not stat.S_ISFIFO(path.stat().st_mode):
        return os.open(path, os.O_WRONLY | os.O_TRUNC)
    end = time.monotonic() + READER_PATIENCE
    while True:
        try:
            file = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > end:
                raise OSError(errno.EPIPE, "it is a pipe from which nobody reads") from error
            time.sleep(0.05)
            continue
        os.set_blocking(file, True)
        return file


READER_PATIENCE = 10.0
"""Seconds within which another process has to open a pipe for reading."""


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
