"""The fast pass over a run of patterns: the largest of each chunk, and whether there may be a run of zeros.

numpy takes two integer maxima over chunks that stay in the cache, with no temporary array and no conversion to float:
`u.max()` over the patterns as unsigned numbers finds the largest negative magnitude (its sign bit is set), `i.max()` over the
same patterns as signed numbers finds the largest positive one. The second maximum and the check of every 127th word for zero
cost a third of the time of the first maximum.

`pattern_max.c` does all of it in one pass, as fast as memory delivers the bytes, and returns the same. It is compiled when
the package is installed on a machine with a C compiler (see `hatch_build`).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ckptcheck.values.dtypes import NumberFormat
from ckptcheck.values.zero_runs import STRIDE, sample_words

CHUNK = 1 << 19
"""Bytes scanned together: the next reader finds them in the cache."""
KERNEL_VERSION = 2
"""The return value of `pattern_max_version` in the source that belongs to this file."""
LIBRARY = Path(__file__).with_name("_pattern_max.so")

MaxPatterns = Callable[[NDArray[np.uint8], NumberFormat], tuple[list[int], bool]]
ScanSmall = Callable[
    [NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64], NumberFormat], tuple[list[int], list[bool]]
]


def max_patterns(raw: NDArray[np.uint8], form: NumberFormat) -> tuple[list[int], bool]:
    """Return the largest pattern without sign of each CHUNK bytes, and whether there may be a run of zero bytes.

    raw: A whole number of elements, aligned to their width.
    The second value is true if a word is zero that every run of MIN_ZERO_RUN zero bytes would cover.
    """
    kernel = _load_kernel()
    return (max_patterns_numpy if kernel is None else kernel[0])(raw, form)


def scan_small(
    raw: NDArray[np.uint8], begins: NDArray[np.int64], sizes: NDArray[np.int64], form: NumberFormat
) -> tuple[list[int], list[bool]] | None:
    """Return the largest pattern of each of many small pieces, and whether the piece needs a closer look; None without the kernel.

    A closer look finds zeros, or one pattern throughout: the piece may have a run of zeros, or its first elements are all the same.

    raw: bytes that hold the pieces, aligned to an element.
    begins, sizes: the first byte of each piece in `raw`, and its bytes: a whole number of elements, more than none.
    """
    return None if (kernel := _load_kernel()) is None else kernel[1](raw, begins, sizes, form)


def is_compiled() -> bool:
    """Whether the compiled kernel exists and belongs to this version."""
    return _load_kernel() is not None


def max_patterns_numpy(raw: NDArray[np.uint8], form: NumberFormat) -> tuple[list[int], bool]:
    """Do the same as `max_patterns`, with numpy alone."""
    patterns, largest = raw.view(form.unsigned), np.maximum.reduce
    signed = patterns.view(form.unsigned.replace("u", "i"))
    step, words = CHUNK // patterns.itemsize, sample_words(raw)
    maxima, may_have_zeros = [], False
    for number, start in enumerate(range(0, patterns.size, step)):
        maximum = int(largest(patterns[start : start + step]))
        chunk_words = words[_first_word(number) : _first_word(number + 1)]
        may_have_zeros = may_have_zeros or np.count_nonzero(chunk_words) != chunk_words.size
        if form.sign and maximum >= form.sign:
            maximum = max(maximum - form.sign, int(largest(signed[start : start + step])))
        maxima.append(maximum)
    return maxima, may_have_zeros


def _first_word(chunk: int) -> int:
    """Return the number of the first sampled word that lies in a chunk."""
    return -(-chunk * CHUNK // STRIDE)


@cache
def _load_kernel() -> tuple[MaxPatterns, ScanSmall] | None:
    """Return the compiled kernels; None without one, or if it comes from another version of the source."""
    if sys.byteorder != "little":
        return None
    try:
        library = ctypes.CDLL(str(LIBRARY))
        if library.pattern_max_version() != KERNEL_VERSION:
            return None
        functions = {bits: getattr(library, f"pattern_max_{bits}") for bits in (8, 16, 32, 64)}
        many = {bits: getattr(library, f"pattern_max_many_{bits}") for bits in functions}
    except (OSError, AttributeError):
        return None
    address, size = ctypes.c_void_p, ctypes.c_size_t
    for function in functions.values():
        function.argtypes = [address, size, size, ctypes.c_int, address]
    for function in many.values():
        function.argtypes, function.restype = [address, address, address, size, ctypes.c_int, address, address], None

    def compiled(raw: NDArray[np.uint8], form: NumberFormat) -> tuple[list[int], bool]:
        width = form.bits // 8
        maxima = np.empty(-(-raw.size // CHUNK), np.uint64)
        may_have_zeros = functions[form.bits](
            raw.ctypes.data, raw.size // width, CHUNK // width, form.sign != 0, maxima.ctypes.data
        )
        return maxima.tolist(), bool(may_have_zeros)

    def scan_many(
        raw: NDArray[np.uint8], begins: NDArray[np.int64], sizes: NDArray[np.int64], form: NumberFormat
    ) -> tuple[list[int], list[bool]]:
        maxima, flags = np.empty(begins.size, np.uint64), np.empty(begins.size, np.bool_)
        many[form.bits](
            raw.ctypes.data,
            begins.ctypes.data,
            sizes.ctypes.data,
            begins.size,
            form.sign != 0,
            maxima.ctypes.data,
            flags.ctypes.data,
        )
        return maxima.tolist(), flags.tolist()

    return compiled, scan_many
