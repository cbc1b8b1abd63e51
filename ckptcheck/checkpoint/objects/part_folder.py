"""Keeps parts in an object store: each part is one object, written by one request."""

from __future__ import annotations

from pathlib import Path

from ckptcheck.checkpoint.objects.address import is_object_address, parse_object_address, strip_file_scheme
from ckptcheck.checkpoint.objects.failures import RequestFailure
from ckptcheck.checkpoint.objects.folder import ObjectFolder, ObjectTree
from ckptcheck.errors import EvidenceError, OutputError, UsageError
from ckptcheck.runners.part_folder import LARGEST, SUFFIX, DiskFolder, PartFolder, StoredPart
from ckptcheck.text.addresses import is_remote_address


class StoreFolder:
    """A folder of an object store; a `PartFolder`."""

    def __init__(self, target: str) -> None:
        """Open the store of an address. Raises CkptcheckError."""
        self.name = target
        self._address = parse_object_address(target)
        self._tree = ObjectTree(target, self._address)

    def list_parts(self) -> list[str]:
        """Return the names of the parts, sorted. Raises CkptcheckError."""
        tree = ObjectTree(self.name, self._address)  # a new one each time, because it caches its listings
        return sorted(name for name in tree.list_names("") if name.endswith(SUFFIX))

    def read(self, part: str) -> StoredPart:
        """Return a part. Raises EvidenceError."""
        try:
            stored = self._tree.bucket.find(self._key(part))
            if stored is None:
                raise EvidenceError(f"{self.locate(part)} does not exist")
            if stored.size > LARGEST:
                raise EvidenceError(f"{self.locate(part)} has {stored.size:,} bytes, which no part has")
            folder = ObjectFolder(self.name, self._address, [(part, stored)])
            return StoredPart(folder.read(part, 0, stored.size), stored.etag)
        except OSError as error:
            raise EvidenceError(f"cannot read {self.locate(part)}: {error.strerror or error}") from error

    def write(self, part: str, content: bytes, known: str | None) -> bool:
        """Write a part, and return whether it was written: not if the store has another version than the known one.

        Raises OutputError.
        """
        try:
            return self._tree.bucket.write(self._key(part), content, known="*" if known == "" else known)
        except RequestFailure as failure:
            raise OutputError(f"cannot write {self.locate(part)}: {failure.text}", failure.hint) from failure

    def locate(self, part: str) -> str:
        """Return the address of a part."""
        return f"{self._address}/{part}"

    def _key(self, part: str) -> str:
        return f"{self._address.key}/{part}" if self._address.key else part


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
