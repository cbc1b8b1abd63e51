"""The interface of a bucket in an object store: list objects, and read ranges of exactly the versions that were listed.

A request that fails says in one sentence why, and what to do about it.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, field
from typing import Protocol

MAX_OBJECTS = 200_000
"""Most objects listed of one folder, twenty times the Hub's recommendation: an endless listing would fill the memory."""
STATUS = re.compile(r"status code: (\d{3})")
NO_CREDENTIALS = (
    "169.254.169.254", "/latest/api/token", "/latest/meta-data", "metadata.google", "token request", "credential",
    "Account must be specified",
)  # fmt: skip
"""Parts of obstore's error when it finds no credentials and then asks the machine's metadata service for some."""
LOG_IN = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or GOOGLE_SKIP_SIGNATURE=true for a public bucket",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
}
LATER = "check the network and the endpoint, or try again later"


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


class RequestFailure(OSError):
    """A request that failed: an OSError whose text is one clause.

    text: what failed. hint: what to do about it, or None.
    """

    def __init__(self, code: int, text: str, hint: str | None = None) -> None:
        super().__init__(code, text)
        self.text, self.hint = text, hint


def explain_failure(
    error: BaseException, root: str, *, is_listing: bool = False, is_writing: bool = False
) -> RequestFailure:
    """Translate an exception of obstore.

    Args:
        error: what obstore raised. Most of its errors share one type, so the text has to distinguish them.
        root: the address of the bucket.
        is_listing: the request lists a folder, so "not found" means the bucket.
        is_writing: the request writes an object, so "not found" means the bucket.
    """
    # The first paragraph is for people; the rest dumps Rust's structures.
    text = str(error).partition("\n\nDebug source")[0]
    found = STATUS.search(text)
    status = int(found[1]) if found else 0
    scheme = root.partition("://")[0]
    log_in = LOG_IN.get("s3" if scheme == "s3a" else scheme, LOG_IN["az"])
    if any(mark in text for mark in NO_CREDENTIALS):
        return RequestFailure(errno.EACCES, f"there are no credentials for {root}", log_in)
    if status == 412 or "precondition" in text.lower()[:40]:
        return RequestFailure(errno.ESTALE, "it was replaced while it was being read")
    if status in (401, 403) or type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
        return RequestFailure(
            errno.EACCES,
            f"{root} does not let you {'write' if is_writing else 'read'} it ({status or 403})",
            f"check your rights, or {log_in}",
        )
    if (is_listing or is_writing) and (status == 404 or isinstance(error, FileNotFoundError)):
        return RequestFailure(errno.ENOENT, f"there is no bucket {root}", "check its name, its region and the endpoint")
    if status == 404 or isinstance(error, FileNotFoundError):
        return RequestFailure(errno.ENOENT, "it is no longer in the bucket")
    if status in (429, 503):
        return RequestFailure(
            errno.EIO,
            f"{root} accepts no more requests for now ({status})",
            "try again later, or with a smaller --jobs",
        )
    if status >= 500:
        return RequestFailure(errno.EIO, f"{root} has an internal error ({status})", "try again later")
    if status in (301, 400) and is_listing:
        return RequestFailure(
            errno.EINVAL, f"{root} refuses the request ({status})", "check the region (AWS_REGION) and the endpoint"
        )
    if status:
        return RequestFailure(errno.EIO, f"{root} refuses the request ({status})")
    if "TimedOut" in str(error):
        return RequestFailure(errno.EIO, f"{root} did not answer in time", LATER)
    if "error sending request" in text or "HTTP error" in text or "connect" in text.lower():
        return RequestFailure(errno.EIO, f"{root} cannot be reached, or broke off its answer", LATER)
    return RequestFailure(errno.EIO, f"the request to {root} failed: {' '.join(text.split())[:200]}", LATER)
