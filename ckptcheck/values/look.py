"""Looks at a run of bytes of one tensor: a glance at all of it, and a slow look at what that flags."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ckptcheck.values.dtypes import FORMATS, Format
from ckptcheck.values.glance import CHUNK, glance
from ckptcheck.values.zeros import zero_runs


class Seen(msgspec.Struct):
    """What a run of bytes of one tensor showed. Positions are elements from the start of the run, zero_runs are bytes.

    top: the largest pattern without sign among finite elements. nan, inf: how many. first_nan, first_inf: where, -1 if
    nowhere. constant: the one pattern of all elements, None where there are several.
    zero_runs: [begin, end) of runs of zero bytes of at least RUN, and of any at the very beginning or end.
    row_peaks, row_marks: what these functions of `peaks` return, where it was asked for.
    """

    top: int = 0
    nan: int = 0
    inf: int = 0
    first_nan: int = -1
    first_inf: int = -1
    constant: int | None = None
    zero_runs: list[tuple[int, int]] = []
    row_peaks: bytes = b""
    row_marks: bytes = b""


def look(raw: NDArray[np.uint8], dtype: str) -> Seen:
    """Look at the bytes of (part of) a tensor, a whole number of elements."""
    form = FORMATS[dtype]
    seen = Seen()
    if raw.size == 0:
        return seen
    if raw.ctypes.data % (form.bits // 8):  # tensors of a misaligned file: the copy costs, the answer is the same
        raw = raw.copy()
    patterns = raw.view(form.unsigned)
    limit = -1 if form.fnuz else form.limit if form.limit is not None else 1 << form.bits
    tops, zero = glance(raw, form)
    for number, top in enumerate(tops):
        if top >= limit:
            start = number * CHUNK // patterns.itemsize
            top = _slow(patterns[start : start + CHUNK // patterns.itemsize], form, start, seen)
        seen.top = max(seen.top, top)
    seen.constant = constant_pattern(patterns)
    seen.zero_runs = zero_runs(raw, zero) if seen.top or seen.nan or seen.inf else [(0, raw.size)]
    return seen


def _slow(part: NDArray[Any], form: Format, start: int, seen: Seen) -> int:
    """Count and place what is not finite; return the largest finite pattern."""
    bare = part & part.dtype.type(form.sign - 1) if form.sign else part
    if form.fnuz:
        bad = part == form.sign
        infinite = np.zeros_like(bad)
    else:
        assert form.limit is not None
        bad = bare >= form.limit
        infinite = bare == form.infinity if form.infinity is not None else np.zeros_like(bad)
    nan = bad & ~infinite
    for name, found in (("nan", nan), ("inf", infinite)):
        number = int(np.count_nonzero(found))
        if number and getattr(seen, f"first_{name}") < 0:
            setattr(seen, f"first_{name}", start + int(found.argmax()))
        setattr(seen, name, getattr(seen, name) + number)
    finite = bare[~bad]
    return int(finite.max()) if finite.size else 0


def constant_pattern(patterns: NDArray[Any]) -> int | None:
    """Return the one pattern of all elements, None where there are several. The beginning is sampled first."""
    first = patterns[0]
    if patterns.size < 2 or not (patterns[:64] == first).all():
        return None
    step = CHUNK // patterns.itemsize
    same = all((patterns[start : start + step] == first).all() for start in range(0, patterns.size, step))
    return int(first) if same else None
