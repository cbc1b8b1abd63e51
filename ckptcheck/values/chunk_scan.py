"""Scans a run of bytes of one tensor: a fast pass over all of it, and a slow pass over what the fast one flags."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.values.dtypes import FORMATS, NumberFormat
from ckptcheck.values.pattern_max import CHUNK, max_patterns
from ckptcheck.values.stats import ChunkStats
from ckptcheck.values.zero_runs import find_zero_runs


def scan_chunk(raw: NDArray[np.uint8], dtype: str) -> ChunkStats:
    """Scan the bytes of (part of) a tensor, a whole number of elements."""
    form = FORMATS[dtype]
    stats = ChunkStats()
    if raw.size == 0:
        return stats
    # Tensors of a misaligned file are copied. That costs time and gives the same statistics.
    if raw.ctypes.data % (form.bits // 8):
        raw = raw.copy()
    patterns = raw.view(form.unsigned)
    limit = -1 if form.fnuz else form.limit if form.limit is not None else 1 << form.bits
    maxima, may_have_zeros = max_patterns(raw, form)
    for number, maximum in enumerate(maxima):
        if maximum >= limit:
            start = number * CHUNK // patterns.itemsize
            maximum = _count_non_finite(patterns[start : start + CHUNK // patterns.itemsize], form, start, stats)
        stats.max_pattern = max(stats.max_pattern, maximum)
    stats.constant = find_constant_pattern(patterns)
    is_zero = not (stats.max_pattern or stats.nan or stats.inf)
    stats.zero_runs = [(0, raw.size)] if is_zero else find_zero_runs(raw, may_have_zeros)
    return stats


def _count_non_finite(part: NDArray[Any], form: NumberFormat, start: int, stats: ChunkStats) -> int:
    """Count the elements that are not finite and note the first; return the largest finite pattern.

    start: Position of `part` in the run that `stats` describes.
    """
    bare = part & part.dtype.type(form.sign - 1) if form.sign else part
    if form.fnuz:
        bad = part == form.sign
        infinite = np.zeros_like(bad)
    else:
        assert form.limit is not None
        bad = bare >= form.limit
        infinite = bare == form.infinity if form.infinity is not None else np.zeros_like(bad)
    nan = bad & ~infinite
    for name, mask in (("nan", nan), ("inf", infinite)):
        number = int(np.count_nonzero(mask))
        if number and getattr(stats, f"first_{name}") < 0:
            setattr(stats, f"first_{name}", start + int(mask.argmax()))
        setattr(stats, name, getattr(stats, name) + number)
    finite = bare[~bad]
    return int(finite.max()) if finite.size else 0


def find_constant_pattern(patterns: NDArray[Any]) -> int | None:
    """Return the pattern that all elements have; None if they differ. The first 64 elements are compared first."""
    first = patterns[0]
    if patterns.size < 2 or not (patterns[:64] == first).all():
        return None
    step = CHUNK // patterns.itemsize
    same = all((patterns[start : start + step] == first).all() for start in range(0, patterns.size, step))
    return int(first) if same else None
