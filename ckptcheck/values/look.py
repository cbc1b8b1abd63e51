"""Looks at a run of bytes of one tensor: the fast look, and the slow one for what the fast one flags.

The fast look takes two integer maxima over chunks that stay in the cache, with no temporary array and no conversion to
float: `u.max()` over the patterns as unsigned numbers finds the largest negative magnitude (its sign bit is set),
`i.max()` over the same as signed numbers the largest positive one.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ckptcheck.values.dtypes import FORMATS, Format
from ckptcheck.values.stats import RUN

CHUNK = 1 << 19
"""Bytes looked at together: both maxima read the same cache lines, the second time from the cache."""
STRIDE = RUN - 8
"""A run of RUN zero bytes covers an aligned word of eight bytes wherever it lies, if one word in each STRIDE is looked at."""


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
    signed = raw.view(form.unsigned.replace("u", "i"))
    step, largest = CHUNK // (form.bits // 8), np.maximum.reduce
    limit = -1 if form.fnuz else form.limit if form.limit is not None else 1 << form.bits
    words, zeros = stride_words(raw), []
    for number, start in enumerate(range(0, patterns.size, step)):
        part = patterns[start : start + step]
        top = int(largest(part))
        near = words[_word(number) : _word(number + 1)]
        if np.count_nonzero(near) != near.size:
            zeros.append(number)
        if form.sign and top >= form.sign:
            top = max(top - form.sign, int(largest(signed[start : start + step])))
        if top >= limit:
            top = _slow(part, form, start, seen)
        if top > seen.top:
            seen.top = top
    seen.constant = constant_pattern(patterns)
    seen.zero_runs = zero_runs(raw, words, zeros) if seen.top or seen.nan or seen.inf else [(0, raw.size)]
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


def stride_words(raw: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return one aligned word of eight bytes of every STRIDE."""
    shift = -raw.ctypes.data % 8
    return raw[shift : shift + (raw.size - shift) // 8 * 8].view(np.uint64)[:: STRIDE // 8]


def _word(chunk: int) -> int:
    """Return the number of the first of those words that lies in a chunk."""
    return -(-chunk * CHUNK // STRIDE)


def zero_runs(raw: NDArray[np.uint8], words: NDArray[np.uint64], chunks: list[int]) -> list[tuple[int, int]]:
    """Return the runs of zero bytes of at least RUN, and shorter ones that touch the beginning or the end.

    words: one of every STRIDE; chunks: the chunks in which one of them is zero. Only there the neighbourhood is looked at.
    """
    shift = -raw.ctypes.data % 8
    runs: list[tuple[int, int]] = []
    for word in (
        _word(number) + int(at)
        for number in chunks
        for at in np.flatnonzero(words[_word(number) : _word(number + 1)] == 0)
    ):
        at = shift + word * STRIDE
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
        end, reach = min(end + reach, raw.size), min(2 * reach, CHUNK)
    reach = RUN
    while begin > 0:
        found = np.flatnonzero(raw[max(0, begin - reach) : begin])
        if found.size:
            begin = max(0, begin - reach) + int(found[-1]) + 1
            break
        begin, reach = max(0, begin - reach), min(2 * reach, CHUNK)
    return begin, end
