"""Distinguishes addresses of remote storage from paths."""

from __future__ import annotations

import re

REMOTE = re.compile(r"(hf|s3|s3a|gs|az|azure|abfs|abfss|adl|msc)://", re.IGNORECASE)
"""Schemes of the Hub, of object stores, and of multi-storage-client, which names any of them."""


def is_remote_address(target: str) -> bool:
    """Whether a target is named by an address on the Hub or in an object store.

    >>> is_remote_address("s3://bucket/run"), is_remote_address("./s3/run")
    (True, False)
    """
    return REMOTE.match(target) is not None
