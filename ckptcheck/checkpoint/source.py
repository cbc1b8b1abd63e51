"""Where the bytes of a checkpoint come from: the `Source` protocol, and a folder on disk. hub.py, objects/ have others."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.file_io import open_regular_file, read_to_parse, real_path

SHA256 = re.compile("[0-9a-f]{64}")
PIECE = 1 << 25
"""Bytes of one read of a file that is parsed: nearly every tokenizer has less, and each read from the Hub is a request."""


class FileState(NamedTuple):
    """The state of a file at one moment.

    It leaves out the time of the last status change (ctime): hard-linked copies of a model (``cp -l``) change that, and no byte.
    """

    size: int
    """Bytes."""
    written: int
    """When its bytes were written last, in nanoseconds. A program may set it back (``cp -p``, ``rsync --times``)."""
    node: tuple[int, int]
    """Its device and its inode number, which mostly differ for another file under the same name."""


def describe_state(status: os.stat_result) -> FileState:
    """Return the state of a file."""
    return FileState(status.st_size, status.st_mtime_ns, (status.st_dev, status.st_ino))


def is_rewritten(before: FileState, after: FileState) -> bool:
    """Whether the bytes of a file may have changed.

    >>> listed = FileState(8, 100, (1, 7))
    >>> [is_rewritten(listed, other) for other in (listed, listed._replace(written=200), listed._replace(node=(1, 8)))]
    [False, True, True]
    """
    return before != after


@dataclass(frozen=True)
class File:
    """A file of the target."""

    name: str
    size: int
    """Size in bytes."""
    outside_link: str | None = None
    """The destination of a link that is not followed, because it leads out of the target or to no file; else None."""
    path: str = field(default="", compare=False)
    """Path of a file on disk, with links resolved at listing, so that a later link cannot redirect it. "" for a remote file."""
    version: str = field(default="", compare=False)
    """Changes when the file is replaced: the ETag in an object store, inode number and time on disk; "" on the Hub."""
    state: FileState | None = field(default=None, compare=False)
    """The state of a file on disk when it was listed; None for a remote file."""


class Source(Protocol):
    """A folder of files that can be read in ranges.

    read() returns fewer bytes than requested if the file ends earlier. It raises FileNotFoundError if the file has
    disappeared since it was listed, and OSError if it exists but cannot be read.
    """

    @property
    def target(self) -> str:
        """The target as the user wrote it."""
        ...

    @property
    def local(self) -> Path | None:
        """The folder on disk; None for a remote source."""
        ...

    @property
    def allows_sampling(self) -> bool:
        """Whether rules may read many small pieces again: not from the Hub, which limits the number of requests."""
        ...

    @property
    def files(self) -> Mapping[str, File]:
        """The files, by name."""
        ...

    def read(self, name: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes from `start`."""
        ...


CHAT_TEMPLATES = "additional_chat_templates"
"""The only subfolder of a checkpoint that transformers reads, for its .jinja files (utils/hub.py)."""


def is_checkpoint_file(path: str) -> bool:
    """Whether a file belongs to the checkpoint: a file at the top, or a chat template in CHAT_TEMPLATES."""
    folder, _, name = path.rpartition("/")
    return not folder or (folder == CHAT_TEMPLATES and name.endswith(".jinja"))


class Folder:
    """The files directly in a folder on disk (or some of them). Links out of the folder are not followed, unless the user says so.

    A snapshot of the Hugging Face cache links to the blobs two levels up; by default, links may lead to no other place outside
    the folder.
    """

    allows_sampling = True

    def __init__(
        self,
        path: Path,
        target: str,
        only: frozenset[str] | None = None,
        *,
        templates: bool = False,
        follow_links: bool = False,
    ) -> None:
        """List the folder.

        Args:
            path: the folder.
            target: the target as the user wrote it.
            only: names of the files to list; None for all.
            templates: list the chat templates in CHAT_TEMPLATES as well; their names contain a slash.
            follow_links: follow links out of the folder, to regular files.

        Raises CkptcheckError if the folder cannot be listed.
        """
        self.target = target
        self.local: Path | None = path
        self._path = real_path(path)
        allowed = [self._path]
        if self._path.parent.name == "snapshots":
            allowed.append(self._path.parent.parent / "blobs")
        if follow_links:
            allowed.append(Path(self._path.anchor))
        try:
            entries = sorted(os.scandir(self._path), key=lambda entry: entry.name)
        except OSError as error:
            raise CkptcheckError(f"cannot list {path}: {error.strerror or error}") from error
        self.files: dict[str, File] = {}
        for entry in entries:
            if (only is None or entry.name in only) and (file := _file(entry, allowed)) is not None:
                self.files[entry.name] = file
        inner = self._path / CHAT_TEMPLATES
        if templates and (follow_links or real_path(inner).is_relative_to(self._path)) and inner.is_dir():
            for entry in sorted(os.scandir(inner), key=lambda entry: entry.name):
                name = f"{CHAT_TEMPLATES}/{entry.name}"
                if is_checkpoint_file(name) and (file := _file(entry, allowed)) is not None:
                    self.files[name] = replace(file, name=name)

    def read(self, name: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes; never through a link that leads out of the target."""
        return read_listed(self.files[name], start, length)

    def open(self, name: str) -> int:
        """Return a descriptor of a file as it was listed, which the caller closes. Raises OSError as `read` does."""
        return _open_listed(self.files[name])


def read_document(source: Source, name: str, most: int, *, is_text: bool = True) -> bytes:
    """Return up to `most` bytes of a file that is parsed, as `read_to_parse` reads it: a parser refuses what ends at a hole.

    is_text: whether the file is a text, which has no zero byte. Raises FileNotFoundError, OSError.
    """
    place = 0

    def read(length: int) -> bytes:
        nonlocal place
        part = source.read(name, place, length)
        place += len(part)
        return part

    return read_to_parse(read, min(most, source.files[name].size), PIECE, is_text=is_text)[0]


def read_listed(listed: File, start: int, length: int) -> bytes:
    """Read up to `length` bytes of a file on this disk as it was listed. Raises OSError."""
    file = _open_listed(listed)
    try:
        parts = []
        while length > 0 and (part := os.pread(file, min(length, 1 << 26), start)):
            parts.append(part)
            start, length = start + len(part), length - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(file)


def _open_listed(listed: File) -> int:
    if listed.outside_link is not None:
        raise PermissionError(f"it is a link to {listed.outside_link}, and was not followed")
    file = open_regular_file(listed.path)
    try:
        _require_same(listed, os.fstat(file))
    except OSError:
        os.close(file)
        raise
    return file


def _require_same(listed: File, opened: os.stat_result) -> None:
    """Raise OSError if another file has taken the place of the one that was listed.

    A write keeps the inode number, a replacement changes it. The number alone proves nothing: some network file systems give a
    new one at each opening, and Windows lists none.
    """
    number, _, time = listed.version.partition(" ")
    is_other = number not in ("", "0", str(opened.st_ino))
    if is_other and (time, listed.size) != (str(opened.st_mtime_ns), opened.st_size):
        raise OSError(errno.ESTALE, "it was replaced by another file since it was listed")


def _file(entry: os.DirEntry[str], allowed: list[Path]) -> File | None:
    """Describe a directory entry; None unless it is a regular file or a link (so not for folders, sockets, pipes).

    allowed: the folder itself, and where else links may lead.
    """
    outside_link, path = None, entry.path
    if entry.is_symlink():
        path = os.path.realpath(entry.path)
        if not any(Path(path).is_relative_to(folder) for folder in allowed):
            outside_link = os.readlink(entry.path)
    try:
        status = entry.stat()
    except OSError as error:
        if not entry.is_symlink():  # the file disappeared after the listing
            return None
        goal = f"{os.readlink(entry.path)}, which cannot be followed: {error.strerror}"
        dangles = "a file that does not exist" if isinstance(error, FileNotFoundError) else goal
        return File(entry.name, 0, outside_link or dangles)
    if stat.S_ISREG(status.st_mode):
        version = f"{status.st_ino} {status.st_mtime_ns}"
        return File(entry.name, status.st_size, outside_link, path, version, describe_state(status))
    leads_out = entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(allowed[0])
    if leads_out and not stat.S_ISDIR(status.st_mode):
        # reading a pipe would wait for ever, and a device has no end
        return File(entry.name, 0, f"{os.readlink(entry.path)}, which is no regular file")
    return None


def describe_version(source: Source, name: str) -> str:
    """Return a text that changes when a file is replaced: its size, and its ETag or the time of its last change.

    "" if the file is gone. Every machine that sees the file gets the same text.
    """
    file = source.files[name]
    if source.local is None:
        return f"{file.size} {file.version}"
    try:
        status = os.stat(file.path)
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def list_rewritten(source: Source, names: Iterable[str]) -> list[str]:
    """Return the files on this disk that have changed since they were listed: written to, replaced, or gone."""
    if source.local is None:
        return []
    return [name for name in dict.fromkeys(names) if name in source.files and _is_other(source.files[name])]


def _is_other(listed: File) -> bool:
    if listed.state is None:
        return False
    try:
        return is_rewritten(listed.state, describe_state(os.stat(listed.path)))
    except OSError:
        return True


def find_nodes(source: Source, *names: str) -> frozenset[str]:
    """Return the nodes of a cluster that have all these files on their disks; empty if any node can read them."""
    find = getattr(source, "find_nodes", None)
    return frozenset() if find is None else find(names)


def blob_digests(source: Source) -> dict[str, str]:
    """Map each file to the SHA-256 in the name of its blob in the Hugging Face cache; {} for any other folder.

    Small files are omitted: the cache names their blobs by git's hash.
    """
    folder = source.local
    if folder is None or real_path(folder).parent.name != "snapshots":
        return {}
    digests = {}
    for name, file in source.files.items():
        blob = os.path.basename(os.path.realpath(folder / name))
        if file.outside_link is None and SHA256.fullmatch(blob):
            digests[name] = blob
    return digests
