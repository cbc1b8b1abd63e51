"""Lists and reads the objects of a bucket with obstore; bucket_of_msc.py does it with multi-storage-client.

obstore takes credentials and endpoints from the environment, each store by its own names: ``AWS_ACCESS_KEY_ID``,
``AWS_ENDPOINT_URL``, ``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_ACCOUNT_NAME``, …. It retries a request that the server
refuses for now (429, 5xx) or does not answer, or whose answer breaks off.

Each read is one request with ``If-Match``. obstore's `get_ranges` takes no conditions, and would mix two versions of an object
that is replaced between two of its requests.
"""

from __future__ import annotations

import asyncio
import errno
import os
from datetime import timedelta
from importlib.util import find_spec
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any

from ckptcheck.checkpoint.lost_time import LostTime
from ckptcheck.checkpoint.objects.address import ObjectAddress
from ckptcheck.checkpoint.objects.bucket import MAX_OBJECTS, Listing, RequestFailure, StoredObject, explain_failure
from ckptcheck.errors import CkptcheckError

REQUEST_SECONDS = 60.0
"""Seconds for one request and its whole answer, of `PIECE` bytes at most."""
CONNECT_SECONDS = 10.0
RETRY_SECONDS = 60.0
"""Seconds after which a request is not repeated: the waits take 51, and an answer that trickles until then would do so again."""
RETRIES = 8
"""Most retries of a request that the server refuses for now; the waits grow to some 25 seconds."""
FIRST_WAIT = 0.1
"""Seconds before the first retry; each further wait is twice as long."""
LISTING_SECONDS = 120.0
"""Seconds for all pages of a listing; a page of a thousand objects takes some tenths of a second."""


class ObstoreBucket:
    """A bucket of S3, Google Cloud Storage or Azure."""

    def __init__(self, address: ObjectAddress) -> None:
        if find_spec("obstore") is None:
            raise CkptcheckError(
                f"{address.scheme}:// is read with the package obstore, which is not installed",
                hint="pip install obstore",
            )
        from obstore.store import from_url

        self._root, self._lost_time = address.root, LostTime()
        settings: dict[str, Any] = {
            "client_options": {
                "timeout": timedelta(seconds=REQUEST_SECONDS),
                "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
                **({"allow_http": True} if _has_plain_endpoint() else {}),
            },
            "retry_config": {
                "max_retries": RETRIES,
                "retry_timeout": timedelta(seconds=RETRY_SECONDS),
                "backoff": {
                    "init_backoff": timedelta(seconds=FIRST_WAIT),
                    "max_backoff": timedelta(seconds=30),
                    "base": 2,
                },
            },
        }
        if address.scheme in ("s3", "s3a") and (provider := _find_profile_credentials()) is not None:
            settings["credential_provider"] = provider
        try:
            self._store = from_url(self._root, **settings)
        except Exception as error:  # obstore has its own errors for each store, and ValueError for a bad address
            failure = explain_failure(error, self._root)
            raise CkptcheckError(failure.text, failure.hint) from error

    def list_folder(self, folder: str) -> Listing:
        """List what lies directly in a folder; "" for the bucket itself. Raises RequestFailure."""
        try:
            answer = self._list_in_time(folder)
        except TimeoutError as error:
            raise RequestFailure(
                errno.EFBIG,
                f"the list of {self._root}/{folder} did not end within {LISTING_SECONDS:g} seconds",
                "name the folder of one checkpoint, or ask who runs the store",
            ) from error
        except Exception as error:
            raise explain_failure(error, self._root, is_listing=True) from error
        objects = [
            self._describe(one, one["path"])
            for one in answer["objects"]
            if one["path"] != folder  # some tools create a folder as an empty object of its name
        ]
        if len({one.key for one in objects}) < len(objects):
            raise RequestFailure(errno.EIO, f"{self._root}/{folder} lists an object twice", "ask who runs the store")
        if len(objects) > MAX_OBJECTS:
            raise RequestFailure(errno.EFBIG, f"{self._root}/{folder} holds more than {MAX_OBJECTS:,} objects")
        return Listing(tuple(objects), tuple(path.rpartition("/")[2] for path in answer["common_prefixes"]))

    def _list_in_time(self, folder: str) -> Any:
        """Return all pages of a listing. Raises TimeoutError, because obstore itself follows a server's pages without end.

        A thread runs an event loop of its own, because the caller may have one running; the loop can cancel the request.
        """
        import obstore

        async def ask() -> Any:
            return await asyncio.wait_for(
                obstore.list_with_delimiter_async(self._store, folder or None), LISTING_SECONDS
            )

        outcome: SimpleQueue[Any] = SimpleQueue()

        def run() -> None:
            try:
                outcome.put(asyncio.run(ask()))
            except BaseException as error:
                outcome.put(error)

        Thread(target=run, name="ckptcheck-listing", daemon=True).start()
        answer = outcome.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def find(self, key: str) -> StoredObject | None:
        """Describe one object, None where there is none. Raises RequestFailure."""
        import obstore

        try:
            found = obstore.head(self._store, key)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise explain_failure(error, self._root) from error
        return self._describe(found, key)

    def _describe(self, found: Any, key: str) -> StoredObject:
        """Describe an object from a listing or an answer. Raises RequestFailure for an ETag that no request can carry."""
        etag = found["e_tag"] or ""
        if not (etag.isascii() and etag.isprintable()):  # obstore would panic
            raise RequestFailure(
                errno.EIO, f"{self._root} gives an object an ETag that is none", "ask who runs the store"
            )
        return StoredObject(key, found["size"], _quote(etag), _second(found))

    def read(self, stored: StoredObject, start: int, length: int) -> bytes:
        """Read a range of an object as it was listed. Raises RequestFailure, also if it was replaced since then."""
        return bytes(self.view(stored, start, length))

    def view(self, stored: StoredObject, start: int, length: int) -> memoryview:
        """Read as `read` does, without a copy."""
        end = min(start + length, stored.size)
        if start >= end:
            return memoryview(b"")
        if self._lost_time.is_over:
            raise RequestFailure(errno.EIO, f"{self._root} answered too slowly, and is not asked again")
        import obstore

        options: dict[str, Any] = {"range": (start, end)}
        if stored.etag:
            options["if_match"] = stored.etag
        begun = monotonic()
        try:
            answer = obstore.get(self._store, stored.key, options=options)
            meta = answer.meta
            content = memoryview(answer.bytes())
        except Exception as error:
            self._lost_time.add(begun, monotonic())
            raise explain_failure(error, self._root) from error
        # compare again, because some servers and proxies ignore the condition
        is_other = (
            _quote(meta["e_tag"] or "") not in ("", stored.etag) if stored.etag else _second(meta) != stored.second
        )
        if meta["size"] != stored.size or is_other:
            raise RequestFailure(errno.ESTALE, "it was replaced while it was being read")
        if len(content) != end - start:
            raise RequestFailure(errno.EIO, f"{self._root} broke off its answer")
        return content

    def write(self, key: str, content: bytes) -> None:
        """Write an object, whole or not at all. Raises RequestFailure."""
        import obstore

        try:
            obstore.put(self._store, key, content)
        except Exception as error:
            raise explain_failure(error, self._root, is_writing=True) from error


def _second(found: Any) -> str:
    """Return when an object was last changed, in whole seconds: listings have milliseconds, the headers of an answer have none."""
    return str(found["last_modified"].replace(microsecond=0))


def _quote(etag: str) -> str:
    """Return an ETag as HTTP writes it. Azure omits the quotes in listings, but not in answers and conditions.

    >>> _quote("0x8CBFF45D8A29A19"), _quote('"a"'), _quote("")
    ('"0x8CBFF45D8A29A19"', '"a"', '')
    """
    return f'"{etag}"' if etag and not etag.endswith('"') else etag


def _has_plain_endpoint() -> bool:
    """Whether the user names an endpoint without TLS, as for a server of their own."""
    endpoints = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    allowed = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP", "ALLOW_HTTP", "AZURE_STORAGE_USE_EMULATOR")
    return any(os.environ.get(name, "").lower().startswith("http://") for name in endpoints) or any(
        os.environ.get(name, "").lower() in ("1", "true") for name in allowed
    )


def _find_profile_credentials() -> Any:
    """Return boto3's provider for the credentials of the AWS profile (``~/.aws``); None if boto3 is not installed.

    None also if the environment holds credentials: it takes precedence, and obstore reads it itself.
    """
    named = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
             "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_SKIP_SIGNATURE")  # fmt: skip
    if any(os.environ.get(name) for name in named) or find_spec("boto3") is None:
        return None
    folder = os.path.expanduser("~/.aws")
    files = (os.environ.get("AWS_SHARED_CREDENTIALS_FILE", f"{folder}/credentials"),
             os.environ.get("AWS_CONFIG_FILE", f"{folder}/config"))  # fmt: skip
    if not any(map(os.path.isfile, files)):
        return None
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return Boto3CredentialProvider()
    except Exception:  # a profile without credentials: obstore asks the machine's role
        return None
