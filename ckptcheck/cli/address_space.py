"""Prepares a process that may map little memory (``ulimit -v``): lets threads reserve less, and warns if that is not enough.

If a thread's first allocation fails, the thread never reports that it runs, and its parent waits for ever. If OpenBLAS, which numpy
loads, gets no memory, it ends the process with the exit code of findings. Both happen only near the limit: each thread reserves
64 MB of addresses by default (M_ARENA_MAX of mallopt(3)), and OpenBLAS some 30 MB for each core.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

LEAST = 256 << 20
"""Fewest bytes of addresses that a command needs at its beginning."""
PLENTY = 16 << 30
"""Bytes of addresses that suffice without saving any."""
M_ARENA_MAX = -8


def prepare_for_few_addresses() -> str | None:
    """Let threads reserve less if few addresses are left; return a sentence if there are too few to run."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY or limit > PLENTY:
            return None
        mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except (ImportError, OSError, ValueError):  # Windows has no such limit; macOS does not keep it
        return None
    if limit - mapped < LEAST:
        return (
            f"this process may map only {limit >> 20:,} MB of memory, and ckptcheck needs {(mapped + LEAST) >> 20:,}: "
            "raise the limit (`ulimit -v`)"
        )
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if sys.platform.startswith("linux"):
        import ctypes

        with suppress(AttributeError, OSError):  # musl has no mallopt, and no arenas
            ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    return None
