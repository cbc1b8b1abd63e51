"""Keeps parts in an object store: each part is one object, written by one request."""

from __future__ import annotations

from pathlib import Path

from ckptcheck.checkpoint.objects.address import is_object_address, parse_object_address, strip_file_scheme
from ckptcheck.checkpoint.objects.folder import ObjectTree, StoredOutput, open_bucket, read_object
from ckptcheck.errors import EvidenceError, UsageError
from ckptcheck.runners.parts import LARGEST, SUFFIX, DiskFolder, PartFolder
from ckptcheck.text.addresses import is_remote_address


class StoreFolder:
    """A folder of an object store; a `PartFolder`."""

    def __init__(self, target: str) -> None:
        """Open the store of an address now, before the work that it is to keep. Raises CkptcheckError."""
        self.name = target
        self._address = parse_object_address(target)
        open_bucket(self._address)

    def list_parts(self) -> list[str]:
        """Return the names of the parts, sorted. Raises CkptcheckError."""
        names = ObjectTree(self.name, self._address).list_names("")
        return sorted(name for name in names if name.endswith(SUFFIX))

    def read(self, part: str) -> bytes:
        """Return a part. Raises EvidenceError."""
        try:
            return read_object(self.locate(part), LARGEST)
        except OSError as error:
            raise EvidenceError(f"cannot read {self.locate(part)}: {error.strerror or error}") from error

    def write(self, part: str, content: bytes) -> None:
        """Write a part in place of any other. Raises OutputError."""
        StoredOutput(self.locate(part)).write(content)

    def locate(self, part: str) -> str:
        """Return the address of a part."""
        return f"{self._address}/{part}"


def open_part_folder(folder: str | Path | PartFolder) -> PartFolder:
    """Return the folder that a path or an address names. Raises CkptcheckError."""
    if not isinstance(folder, (str, Path)):
        return folder
    name = strip_file_scheme(str(folder))
    if is_object_address(name):
        return StoreFolder(name)
    if is_remote_address(name):
        raise UsageError(f"{name} is no folder for parts", hint="name a folder, or s3://bucket/folder")
    return DiskFolder(name)
