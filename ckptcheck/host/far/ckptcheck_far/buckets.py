"""Which weights travel together; the near and the far side both count on it."""

from __future__ import annotations

from collections.abc import Sequence


def fill(sizes: Sequence[int], most: int) -> list[range]:
    """Cut a list of weights (bytes each) into buckets of at most so many bytes; a larger weight has one to itself.

    >>> fill([3, 3, 9, 1], 6)
    [range(0, 2), range(2, 3), range(3, 4)]
    """
    buckets = []
    begin = total = 0
    for number, size in enumerate(sizes):
        if number > begin and total + size > most:
            buckets.append(range(begin, number))
            begin, total = number, 0
        total += size
    if begin < len(sizes):
        buckets.append(range(begin, len(sizes)))
    return buckets
