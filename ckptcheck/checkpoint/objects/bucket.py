"""The interface of a bucket in an object store: list objects, and read ranges of exactly the versions that were listed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

MAX_OBJECTS = 200_000
"""Most objects listed of one folder, twenty times the Hub's recommendation: an endless listing would fill the memory."""


@dataclass(frozen=True)
class StoredObject:
    """An object as its store lists it."""

    key: str
    size: int
    etag: str
    """Changes when the object is replaced; "" if the store gives none."""
    second: str = field(default="", compare=False)
    """When it was last changed, for a store that gives no ETag; "" if unknown."""


@dataclass(frozen=True)
class Listing:
    """What lies directly in a folder of a bucket."""

    objects: tuple[StoredObject, ...]
    folders: tuple[str, ...]
    """Names of the folders in it, without slashes."""


class Bucket(Protocol):
    """A bucket whose objects can be listed and read in ranges. Threads may share it."""

    def list_folder(self, folder: str) -> Listing:
        """List what lies directly in a folder; "" for the bucket itself. Raises RequestFailure."""
        ...

    def find(self, key: str) -> StoredObject | None:
        """Describe one object, None where there is none. Raises RequestFailure."""
        ...

    def read(self, stored: StoredObject, start: int, length: int) -> bytes:
        """Read a range of an object as it was listed. Raises RequestFailure, also if it was replaced since then."""
        ...

    def view(self, stored: StoredObject, start: int, length: int) -> bytes | memoryview:
        """Read as `read` does, without a copy if the client needs none."""
        ...

    def write(self, key: str, content: bytes) -> None:
        """Write an object, whole or not at all. Raises RequestFailure."""
        ...
