"""Reads the results that another machine computed: one for each unit, of the work's result type, within the unit's limits.

A node of a cluster and a folder of parts may hold anything, so this module refuses a result that does not fit its unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ckptcheck.runners.runner import R, U, Work

MOST_BYTES, MOST_TIMES = 1 << 22, 16
"""Most bytes of a result: a base, and MOST_TIMES for each byte of its unit. Decoded, it takes many times as much memory."""


class MalformedResult(Exception):
    """An answer from another machine is no result of this work; the message is a clause that says why."""


def decode_results(work: Work[U, R], units: Sequence[U], results: Any) -> Iterator[tuple[U, R]]:
    """Yield each unit with its result, in order. results: the results of all units as MessagePack. Raises MalformedResult."""
    if not isinstance(results, list) or len(results) != len(units):
        raise MalformedResult("there is not one result for each piece of the work")
    decoder = msgspec.msgpack.Decoder(work.result_type)
    for unit, content in zip(units, results, strict=True):
        if isinstance(content, bytes) and len(content) > MOST_BYTES + MOST_TIMES * work.weigh(unit):
            raise MalformedResult(f"a result has {len(content):,} bytes, more than its piece of the work")
        try:
            result: R = decoder.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
            raise MalformedResult(str(error)) from error
        if not work.fits(unit, result):
            raise MalformedResult("a result does not fit its piece of the work")
        yield unit, result
