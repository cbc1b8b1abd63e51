"""Reads the address of a checkpoint in an object store: ``s3://bucket/folder``, ``gs://…``, ``az://container/folder``, ``msc://…``."""

from __future__ import annotations

import os
import re

import msgspec

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.addresses import is_remote_address

FILE = "file://"
HUB = "hf://"


class ObjectAddress(msgspec.Struct, frozen=True):
    """A place in an object store."""

    scheme: str
    """``s3``, ``gs``, ``az``, … or ``msc``."""
    bucket: str
    """The bucket, the container, or the profile of multi-storage-client."""
    key: str
    """The part after the bucket, without slashes at its ends; "" for the bucket itself."""

    @property
    def root(self) -> str:
        """The address of the bucket."""
        return f"{self.scheme}://{self.bucket}"

    def __str__(self) -> str:
        return f"{self.root}/{self.key}" if self.key else self.root


def is_object_address(target: str) -> bool:
    """Whether a target lies in an object store.

    >>> is_object_address("s3://bucket/step_100"), is_object_address("hf://org/name"), is_object_address("file:///tmp/x")
    (True, False, False)
    """
    return is_remote_address(target) and not target.startswith(HUB)


def parse_object_address(target: str) -> ObjectAddress:
    """Split an address into scheme, bucket and key. Raises CkptcheckError if it names no bucket.

    >>> parse_object_address("s3://bucket/runs/step_100/")
    ObjectAddress(scheme='s3', bucket='bucket', key='runs/step_100')
    """
    scheme, _, rest = target.strip().partition("://")
    bucket, _, key = rest.partition("/")
    if not bucket:
        raise CkptcheckError(f"{target} names no bucket", hint=f"write it as {scheme.lower()}://bucket/folder")
    return ObjectAddress(scheme.lower(), bucket, re.sub("/+", "/", key).strip("/"))


def strip_file_scheme(target: str) -> str:
    """Return the path of a ``file://`` address, any other target unchanged. Raises CkptcheckError if the address has no path.

    >>> strip_file_scheme("file:///data/my%20model"), strip_file_scheme("./model")
    ('/data/my model', './model')
    """
    if not target.lower().startswith(FILE):
        return target
    from urllib.parse import unquote_to_bytes

    machine, slash, path = target[len(FILE) :].partition("/")
    if machine.lower() not in ("", "localhost"):
        raise CkptcheckError(
            f"{target} names a file of another machine", hint="write it with three slashes: file:///folder"
        )
    # a name need not be UTF-8
    name = os.fsdecode(unquote_to_bytes((slash + path).encode("utf-8", "surrogateescape")))
    if "\0" in name or not name:
        raise CkptcheckError(f"{target} is the address of no file", hint="write it as file:///folder")
    return name
