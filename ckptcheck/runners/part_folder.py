"""Keeps parts in a folder that the machines share. checkpoint/objects has one in an object store."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.text.file_io import read_regular_file, replace_file

SUFFIX = ".ckptcheck-part"
LARGEST = 1 << 28
"""Most bytes of a part that are read."""


class StoredPart(NamedTuple):
    """A part as it is stored."""

    content: bytes
    version: str
    """Changes when another process writes the part; "" if the storage gives none."""


class PartFolder(Protocol):
    """A folder whose files are written whole or not at all."""

    name: str
    """The folder as the user named it."""

    def list_parts(self) -> list[str]:
        """Return the names of the parts, sorted. Raises CkptcheckError."""
        ...

    def read(self, part: str) -> StoredPart:
        """Return a part. Raises EvidenceError."""
        ...

    def write(self, part: str, content: bytes, known: str | None) -> bool:
        """Write a part, and return whether it was written. Raises CkptcheckError.

        known: the version that the writer saw; None if it saw no part; ``*`` for any. If the part has another version by now,
        nothing is written, provided that the storage has versions.
        """
        ...

    def locate(self, part: str) -> str:
        """Return the path or the address of a part."""
        ...


class DiskFolder:
    """A folder on a disk or on a file system that the machines share; a `PartFolder`."""

    def __init__(self, path: str | Path) -> None:
        """Name the folder; it is made when the first part is written."""
        self.name = str(path)
        self._path = Path(path)

    def list_parts(self) -> list[str]:
        """Return the names of the parts, sorted. Raises CkptcheckError."""
        try:
            return sorted(path.name for path in self._path.iterdir() if path.name.endswith(SUFFIX))
        except OSError as error:
            raise CkptcheckError(f"cannot list {self._path}: {error.strerror or error}") from error

    def read(self, part: str) -> StoredPart:
        """Return a part. Raises EvidenceError."""
        try:
            return StoredPart(read_regular_file(self._path / part, LARGEST, is_text=False), "")
        except OSError as error:
            raise EvidenceError(f"cannot read {self.locate(part)}: {error.strerror or error}") from error

    def write(self, part: str, content: bytes, known: str | None) -> bool:
        """Write a part in place of any other. Raises CkptcheckError."""
        self._path.mkdir(parents=True, exist_ok=True)
        replace_file(self._path / part, content)
        return True

    def locate(self, part: str) -> str:
        """Return the path of a part."""
        return str(self._path / part)
