"""Where a checkpoint's bytes come from: a folder on disk here, a repository on the Hub in hub.py."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ckptcheck.errors import CkptcheckError

SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class File:
    """A file of the target. size in bytes; leaves: where a link points that leaves the target, else None."""

    name: str
    size: int
    leaves: str | None = None


class Source(Protocol):
    """A flat folder of files that can be read piecewise.

    read() returns fewer bytes than asked for where the file ends earlier. It raises FileNotFoundError when the file
    has gone since it was listed, and OSError when it exists but cannot be read.
    """

    @property
    def target(self) -> str:
        """What the user named."""
        ...

    @property
    def local(self) -> Path | None:
        """Where the files lie on disk, None if they do not."""
        ...

    @property
    def files(self) -> Mapping[str, File]:
        """The files, by name."""
        ...

    def read(self, name: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes from `start`."""
        ...


CHAT_TEMPLATES = "additional_chat_templates"
"""The one folder below a checkpoint that transformers looks into, for the files that end in .jinja (utils/hub.py)."""


def belongs(path: str) -> bool:
    """Whether a file of a folder is one of the checkpoint's: at the top, or a chat template in CHAT_TEMPLATES."""
    folder, _, name = path.rpartition("/")
    return not folder or (folder == CHAT_TEMPLATES and name.endswith(".jinja"))


class Folder:
    """The files directly in a folder on disk (or only some of them). Links are followed no further than allowed.

    A snapshot of the Hugging Face cache links to the blobs two levels up; that is the one place outside the folder
    a link may lead to.
    """

    def __init__(self, path: Path, target: str, only: frozenset[str] | None = None, *, templates: bool = False) -> None:
        """`templates`: take the chat templates of CHAT_TEMPLATES too, their names with a slash."""
        self.target = target
        self.local: Path | None = path
        self._path = path.resolve()
        allowed = [self._path]
        if self._path.parent.name == "snapshots":
            allowed.append(self._path.parent.parent / "blobs")
        try:
            entries = sorted(os.scandir(self._path), key=lambda entry: entry.name)
        except OSError as error:
            raise CkptcheckError(f"cannot list {path}: {error.strerror or error}") from error
        self.files: dict[str, File] = {}
        for entry in entries:
            if (only is None or entry.name in only) and (file := _file(entry, allowed)) is not None:
                self.files[entry.name] = file
        inner = self._path / CHAT_TEMPLATES
        if templates and inner.resolve().is_relative_to(self._path) and inner.is_dir():
            for entry in sorted(os.scandir(inner), key=lambda entry: entry.name):
                name = f"{CHAT_TEMPLATES}/{entry.name}"
                if belongs(name) and (file := _file(entry, allowed)) is not None:
                    self.files[name] = File(name, file.size, file.leaves)

    def read(self, name: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes; never past a link that leaves the target."""
        if (leaves := self.files[name].leaves) is not None:
            raise PermissionError(f"it is a link to {leaves}, outside the checkpoint")
        file = os.open(
            f"{self._path}/{name}", os.O_RDONLY
        )  # a third of the time of `open`: samples are thousands of reads
        try:
            parts = []
            while length > 0 and (part := os.pread(file, min(length, 1 << 26), start)):
                parts.append(part)
                start, length = start + len(part), length - len(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            os.close(file)


def _file(entry: os.DirEntry[str], allowed: list[Path]) -> File | None:
    """Describe a directory entry; None for what is no regular file (folders, sockets, pipes) and no link."""
    leaves = None
    if entry.is_symlink():
        goal = Path(os.path.realpath(entry.path))
        if not any(goal.is_relative_to(folder) for folder in allowed):
            leaves = os.readlink(entry.path)
    try:
        status = entry.stat()
    except OSError:  # a dangling link, or gone since it was listed: its name is there, its bytes are not
        return File(entry.name, 0, leaves or "a file that does not exist") if entry.is_symlink() else None
    return File(entry.name, status.st_size, leaves) if stat.S_ISREG(status.st_mode) else None


def blob_digests(source: Source) -> dict[str, str]:
    """Return file → the SHA-256 that the Hugging Face cache names its blob by; small files have git's hash, and are left out."""
    folder = source.local
    if folder is None or folder.resolve().parent.name != "snapshots":
        return {}
    found = {}
    for name, file in source.files.items():
        blob = os.path.basename(os.path.realpath(folder / name))
        if file.leaves is None and SHA256.fullmatch(blob):
            found[name] = blob
    return found
