"""Splits weights into buckets. The client and the worker both run this function and rely on the same result."""

from __future__ import annotations

from collections.abc import Sequence


def split_into_buckets(sizes: Sequence[int], max_bytes: int) -> list[range]:
    """Split a list of weights (bytes each) into buckets of at most `max_bytes`; a larger weight gets a bucket to itself.

    >>> split_into_buckets([3, 3, 9, 1], 6)
    [range(0, 2), range(2, 3), range(3, 4)]
    """
    buckets = []
    begin = total = 0
    for number, size in enumerate(sizes):
        if number > begin and total + size > max_bytes:
            buckets.append(range(begin, number))
            begin, total = number, 0
        total += size
    if begin < len(sizes):
        buckets.append(range(begin, len(sizes)))
    return buckets
