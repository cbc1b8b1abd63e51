"""Events that the conformance kit causes between two buckets: entries among the buckets whose address names one.

{"address": {"interrupt": KIND, "seconds": …}, "names": []}. The kinds:

delay           the next bucket comes later
sender-dies     nothing comes after this
receiver-dies   this process ends, as if it were killed
begin, end      of a second update, where the engine has a session of updates
sleep           the engine sleeps and wakes
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

from . import tensor_files


class SenderDied(Exception):
    """The sender makes no further call, so it gets no answer."""


def find_kind(bucket: dict[str, Any]) -> str:
    """Return the event of an entry; "" for a bucket."""
    return str(bucket["address"].get("interrupt", ""))


def interrupt(bucket: dict[str, Any]) -> bool:
    """Cause an event that needs no engine; return whether the entry was an event. Raises SenderDied."""
    kind = find_kind(bucket)
    if kind == "delay":
        time.sleep(float(bucket["address"]["seconds"]))
    elif kind == "receiver-dies":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "sender-dies":
        raise SenderDied("the sender died")
    return bool(kind)


def read_stream(buckets: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield (name, tensor) of all buckets, and cause the events between. Raises ConnectionError for a dead sender."""
    for bucket in buckets:
        try:
            is_interruption = interrupt(bucket)
        except SenderDied as error:
            raise ConnectionError(str(error)) from error
        if not is_interruption:
            yield from tensor_files.read_bucket(bucket)
