"""Prepares numpy for a command: OpenBLAS gets one thread, because its pool takes longer to start than a small scan; and arrays
use the memory of those before.

Only commands whose products of matrices are small are named here, and only a command does this: Python programs that call a verb
have other work for numpy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

NAME = "OPENBLAS_NUM_THREADS"
VERBS = ("scan", "judge", "series")
"""Verbs that always use numpy, and multiply no large matrices."""
VERBS_THAT_MAY = ("identity", "manifest", "verify")
"""Verbs that use numpy where tensors are split or joined, and start no process that multiplies matrices."""
KEPT = (1 << 25) - (1 << 16)
"""Bytes: close to the most that glibc learns from, DEFAULT_MMAP_THRESHOLD_MAX of its malloc.c."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Let OpenBLAS start one thread if numpy is imported in the block, unless the user says how many."""
    is_set = NAME in os.environ
    os.environ.setdefault(NAME, "1")
    try:
        yield
    finally:
        if not is_set:
            del os.environ[NAME]


def import_numpy() -> None:
    """Import numpy, and let the memory of small arrays be used again.

    The environment is the same before and after, so that engines and other children keep all their cores.
    """
    with one_thread():
        import numpy
    # The C library gives the memory of an array back to the system, which clears it again for the next one: a quarter of a
    # judgement. glibc keeps up to twice the largest block that was freed (mallopt(3), M_MMAP_THRESHOLD). It is not touched.
    numpy.empty(KEPT, numpy.uint8)
