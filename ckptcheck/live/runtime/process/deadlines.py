"""A time budget that all calls to workers in a block share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_budget_deadline: ContextVar[float | None] = ContextVar("end", default=None)


@contextmanager
def time_budget(seconds: float | None) -> Iterator[None]:
    """Limit all calls to workers in this block to so many seconds together; None keeps the budget of an enclosing block.

    A thread only inherits the budget if it runs in a copy of the context (contextvars.copy_context).
    """
    token = _budget_deadline.set(compute_deadline(seconds))
    try:
        yield
    finally:
        _budget_deadline.reset(token)


def compute_deadline(seconds: float | None = None) -> float | None:
    """Return the time (time.monotonic) by which a call limited to so many seconds must end; None for no limit."""
    deadlines = [] if seconds is None else [time.monotonic() + seconds]
    budget = _budget_deadline.get()
    if budget is not None:
        deadlines.append(budget)
    return min(deadlines, default=None)


def default_timeout(seconds: float) -> float | None:
    """Return so many seconds outside a `time_budget`, None inside one, where the budget alone decides."""
    return seconds if _budget_deadline.get() is None else None


def remaining_seconds(most: float) -> float:
    """Return the remaining seconds of the budget, at most `most`; at least a millisecond, for functions that refuse zero."""
    deadline = compute_deadline(most)
    return max(0.001, (deadline or 0.0) - time.monotonic())
