"""Runs of zero bytes within the bytes of a tensor."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ckptcheck.values.stats import RUN

STRIDE = RUN - 8
"""A run of RUN zero bytes covers an aligned word of eight bytes wherever it lies, if one word in each STRIDE is looked at."""
REACH = 1 << 19
"""The most bytes looked at together on the way to the end of a run."""


def stride_words(raw: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return one aligned word of eight bytes of every STRIDE."""
    shift = -raw.ctypes.data % 8
    return raw[shift : shift + (raw.size - shift) // 8 * 8].view(np.uint64)[:: STRIDE // 8]


def zero_runs(raw: NDArray[np.uint8], somewhere: bool) -> list[tuple[int, int]]:
    """Return the runs of zero bytes of at least RUN, and shorter ones that touch the beginning or the end.

    somewhere: whether there may be one that touches neither; only then is it looked for.
    """
    shift = -raw.ctypes.data % 8
    runs: list[tuple[int, int]] = []
    words: Iterable[np.intp] = np.flatnonzero(stride_words(raw) == 0) if somewhere else ()
    for word in words:
        at = shift + int(word) * STRIDE
        if runs and at < runs[-1][1]:
            continue
        begin, end = _extent(raw, at)
        if end - begin >= RUN or begin == 0 or end == raw.size:
            runs.append((begin, end))
    if raw[0] == 0 and not (runs and runs[0][0] == 0):
        runs.insert(0, _extent(raw, 0))
    if raw[-1] == 0 and not (runs and runs[-1][1] == raw.size):
        runs.append(_extent(raw, raw.size - 1))
    return runs


def _extent(raw: NDArray[np.uint8], at: int) -> tuple[int, int]:
    """Return how far the zeros around a zero byte reach."""
    begin, end = at, at
    reach = RUN
    while end < raw.size:
        found = np.flatnonzero(raw[end : end + reach])
        if found.size:
            end += int(found[0])
            break
        end, reach = min(end + reach, raw.size), min(2 * reach, REACH)
    reach = RUN
    while begin > 0:
        found = np.flatnonzero(raw[max(0, begin - reach) : begin])
        if found.size:
            begin = max(0, begin - reach) + int(found[-1]) + 1
            break
        begin, reach = max(0, begin - reach), min(2 * reach, REACH)
    return begin, end
