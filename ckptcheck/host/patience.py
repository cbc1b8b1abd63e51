"""How long whatever is asked of far processes may take together: a deadline that every host below it obeys."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_end: ContextVar[float | None] = ContextVar("end", default=None)


@contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """Give all calls of hosts in this block so many seconds together; None leaves it at what is left of a block around it.

    A thread has no part in it unless it runs in a copy of the context (contextvars.copy_context).
    """
    token = _end.set(deadline(seconds))
    try:
        yield
    finally:
        _end.reset(token)


def deadline(seconds: float | None = None) -> float | None:
    """Return when (time.monotonic) a call that may take so many seconds has to be over; None for never."""
    ends = [] if seconds is None else [time.monotonic() + seconds]
    around = _end.get()
    if around is not None:
        ends.append(around)
    return min(ends, default=None)


def otherwise(seconds: float) -> float | None:
    """Return so many seconds where no block is around, which then decides alone."""
    return seconds if _end.get() is None else None


def left(most: float) -> float:
    """Return the seconds that are left, at most so many; at least a thousandth, for what takes no zero."""
    end = deadline(most)
    return max(0.001, (end or 0.0) - time.monotonic())
