"""The fast look at a run of patterns: the largest of each chunk, and whether there may be a run of zeros.

numpy takes two integer maxima over chunks that stay in the cache, with no temporary array and no conversion to float:
`u.max()` over the patterns as unsigned numbers finds the largest negative magnitude (its sign bit is set), `i.max()` over the
same as signed numbers the largest positive one. A second maximum and a look at every 127th word cost it a third of the time
of the first. `glance.c` does it all in one pass, as fast as memory gives the bytes: it is compiled when the package is
installed where there is a C compiler (see `hatch_build`), and what it says is the same.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ckptcheck.values.dtypes import Format
from ckptcheck.values.zeros import STRIDE, stride_words

CHUNK = 1 << 19
"""Bytes looked at together: what follows reads the same cache lines, the second time from the cache."""
VERSION = 1
"""`glance_version` of the source that belongs to this file."""
LIBRARY = Path(__file__).with_name("_glance.so")

Glance = Callable[[NDArray[np.uint8], Format], tuple[list[int], bool]]


def glance(raw: NDArray[np.uint8], form: Format) -> tuple[list[int], bool]:
    """Glance at a whole number of elements, aligned to their width.

    Return the largest pattern without sign of each CHUNK bytes, and whether there may be a run of RUN zero bytes.
    """
    return (_compiled() or with_numpy)(raw, form)


def is_compiled() -> bool:
    """Whether the compiled glance is there and belongs to this version."""
    return _compiled() is not None


def with_numpy(raw: NDArray[np.uint8], form: Format) -> tuple[list[int], bool]:
    """Glance with numpy alone; what it is given and returns is described at `glance`."""
    patterns, largest = raw.view(form.unsigned), np.maximum.reduce
    signed = patterns.view(form.unsigned.replace("u", "i"))
    step, words = CHUNK // patterns.itemsize, stride_words(raw)
    tops, zero = [], False
    for number, start in enumerate(range(0, patterns.size, step)):
        top = int(largest(patterns[start : start + step]))
        near = words[_word(number) : _word(number + 1)]
        zero = zero or np.count_nonzero(near) != near.size
        if form.sign and top >= form.sign:
            top = max(top - form.sign, int(largest(signed[start : start + step])))
        tops.append(top)
    return tops, zero


def _word(chunk: int) -> int:
    """Return the number of the first of those words that lies in a chunk."""
    return -(-chunk * CHUNK // STRIDE)


@cache
def _compiled() -> Glance | None:
    """Return the compiled glance; None where none was built, or from another source than this."""
    if sys.byteorder != "little":
        return None
    try:
        library = ctypes.CDLL(str(LIBRARY))
        if library.glance_version() != VERSION:
            return None
        functions = {bits: getattr(library, f"glance_{bits}") for bits in (8, 16, 32, 64)}
    except (OSError, AttributeError):
        return None
    for function in functions.values():
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]

    def compiled(raw: NDArray[np.uint8], form: Format) -> tuple[list[int], bool]:
        width = form.bits // 8
        tops = np.empty(-(-raw.size // CHUNK), np.uint64)
        zero = functions[form.bits](
            raw.ctypes.data, raw.size // width, CHUNK // width, form.sign != 0, tops.ctypes.data
        )
        return tops.tolist(), bool(zero)

    return compiled
