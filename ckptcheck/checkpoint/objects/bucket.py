"""What a bucket of an object store offers: objects that can be listed, and read in ranges as they were when they were listed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

MAX_OBJECTS = 200_000
"""Most objects of one folder that are listed, twenty times what the Hub recommends: a list without end would take all memory."""


@dataclass(frozen=True)
class StoredObject:
    """An object as its store lists it."""

    key: str
    size: int
    etag: str
    """What changes when the object is replaced; "" where the store does not say."""
    second: str = field(default="", compare=False)
    """When it was last changed, for a store that gives no ETag; "" where that is not known."""


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
        """Read a range of an object as it was listed. Raises RequestFailure, also where it was replaced since then."""
        ...

    def write(self, key: str, content: bytes, *, known: str | None = "*") -> bool:
        """Write an object, whole or not at all, and return whether it was written. Raises RequestFailure.

        known: the ETag that it has to have until then, None where it must not be there; ``*``: write it in any case. What makes
        no conditions writes it, too.
        """
        ...
