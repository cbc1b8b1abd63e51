"""Lists and reads objects through multi-storage-client: ``msc://profile/folder``, the addresses of Megatron Core and NeMo-RL.

Its configuration (``MSC_CONFIG``) gives each profile a storage, credentials and retries. It reads without conditions, so the
bucket asks for an object's version after each read, and discards the bytes if the object was replaced.
"""

from __future__ import annotations

import errno
from importlib.util import find_spec
from itertools import islice
from typing import Any

from ckptcheck.checkpoint.objects.address import ObjectAddress
from ckptcheck.checkpoint.objects.bucket import MAX_OBJECTS, Listing, RequestFailure, StoredObject
from ckptcheck.errors import CkptcheckError


class MscBucket:
    """The storage of a profile of multi-storage-client; a `Bucket`."""

    def __init__(self, address: ObjectAddress) -> None:
        if find_spec("multistorageclient") is None:
            raise CkptcheckError(
                "msc:// is read with the package multi-storage-client, which is not installed",
                hint="pip install multi-storage-client, with the extra of your storage: [boto3], [google-cloud-storage], …",
            )
        import multistorageclient

        self._root = address.root
        try:
            self._client: Any = multistorageclient.resolve_storage_client(f"{address.root}/")[0]
        except Exception as error:  # an unknown profile, an extra that is not installed: ValueError, ImportError, …
            raise CkptcheckError(
                f"the profile {address.bucket} of multi-storage-client cannot be used: {_one_line(error)}",
                hint="see the file that MSC_CONFIG names",
            ) from error

    def list_folder(self, folder: str) -> Listing:
        """List what lies directly in a folder; "" for all of the profile. Raises RequestFailure."""
        try:
            listed = self._client.list(path=f"{folder}/" if folder else "", include_directories=True)
            found = list(islice(listed, MAX_OBJECTS + 1))
        except FileNotFoundError:
            found = []
        except Exception as error:
            raise self._failure(error) from error
        if len(found) > MAX_OBJECTS:
            raise RequestFailure(errno.EFBIG, f"{self._root}/{folder} holds more than {MAX_OBJECTS:,} objects")
        objects = tuple(
            _stored(one, one.key) for one in found if one.type != "directory" and one.key.strip("/") != folder
        )
        folders = tuple(one.key.rstrip("/").rpartition("/")[2] for one in found if one.type == "directory")
        return Listing(objects, folders)

    def find(self, key: str) -> StoredObject | None:
        """Describe one object, None where there is none. Raises RequestFailure."""
        try:
            found = self._client.info(key)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._failure(error) from error
        return None if found.type == "directory" else _stored(found, key)

    def read(self, stored: StoredObject, start: int, length: int) -> bytes:
        """Read a range of an object as it was listed. Raises RequestFailure, also if it was replaced since then."""
        length = min(length, stored.size - start)
        if length <= 0:
            return b""
        from multistorageclient.types import Range

        try:
            content = bytes(self._client.read(stored.key, byte_range=Range(start, length)))
        except Exception as error:
            raise self._failure(error) from error
        if self.find(stored.key) != stored:
            raise RequestFailure(errno.ESTALE, "it was replaced while it was being read")
        return content

    view = read

    def write(self, key: str, content: bytes) -> None:
        """Write an object, whole or not at all. Raises RequestFailure."""
        try:
            self._client.write(key, content)
        except Exception as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> RequestFailure:
        if isinstance(error, FileNotFoundError):
            return RequestFailure(errno.ENOENT, "it is no longer in the bucket")
        code = errno.EACCES if isinstance(error, PermissionError) else errno.EIO
        return RequestFailure(code, f"the request to {self._root} failed: {_one_line(error)}")


def _stored(found: Any, key: str) -> StoredObject:
    """Describe an object; if its storage has no ETag, the time of its last change takes its place."""
    return StoredObject(key.lstrip("/"), found.content_length, found.etag or found.last_modified.isoformat())


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
