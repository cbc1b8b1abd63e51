"""Finds runs of zero bytes within the bytes of a tensor."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ckptcheck.values.stats import MIN_ZERO_RUN

STRIDE = MIN_ZERO_RUN - 8
"""Bytes between two sampled words. A run of MIN_ZERO_RUN zero bytes covers a sampled word wherever the run lies."""
MAX_REACH = 1 << 19
"""The most bytes searched at a time for the end of a run: they fit into the cache of a core."""


def sample_words(raw: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return one aligned word of eight bytes out of every STRIDE bytes."""
    shift = -raw.ctypes.data % 8
    return raw[shift : shift + (raw.size - shift) // 8 * 8].view(np.uint64)[:: STRIDE // 8]


def find_zero_runs(raw: NDArray[np.uint8], may_have_inner: bool) -> list[tuple[int, int]]:
    """Return [begin, end) of the runs of at least MIN_ZERO_RUN zero bytes, and of shorter ones at either end.

    may_have_inner: Whether there may be a run that touches neither end. Only then the inside is searched.
    """
    shift = -raw.ctypes.data % 8
    runs: list[tuple[int, int]] = []
    words: Iterable[np.intp] = np.flatnonzero(sample_words(raw) == 0) if may_have_inner else ()
    for word in words:
        position = shift + int(word) * STRIDE
        if runs and position < runs[-1][1]:
            continue
        begin, end = _zero_extent(raw, position)
        if end - begin >= MIN_ZERO_RUN or begin == 0 or end == raw.size:
            runs.append((begin, end))
    if raw[0] == 0 and not (runs and runs[0][0] == 0):
        runs.insert(0, _zero_extent(raw, 0))
    if raw[-1] == 0 and not (runs and runs[-1][1] == raw.size):
        runs.append(_zero_extent(raw, raw.size - 1))
    return runs


def _zero_extent(raw: NDArray[np.uint8], position: int) -> tuple[int, int]:
    """Return [begin, end) of the run of zeros around a zero byte."""
    begin, end = position, position
    reach = MIN_ZERO_RUN
    while end < raw.size:
        nonzero = np.flatnonzero(raw[end : end + reach])
        if nonzero.size:
            end += int(nonzero[0])
            break
        end, reach = min(end + reach, raw.size), min(2 * reach, MAX_REACH)
    reach = MIN_ZERO_RUN
    while begin > 0:
        nonzero = np.flatnonzero(raw[max(0, begin - reach) : begin])
        if nonzero.size:
            begin = max(0, begin - reach) + int(nonzero[-1]) + 1
            break
        begin, reach = max(0, begin - reach), min(2 * reach, MAX_REACH)
    return begin, end
