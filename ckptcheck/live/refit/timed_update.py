"""Lets an update run at the engine's own speed, so that the seconds that are reported are those of a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from ckptcheck.live.refit.trace import Sync


@runtime_checkable
class TimedEngine(Protocol):
    """An engine in which a trial fills the memory that an update allocates, which costs time."""

    def time_updates(self, on: bool) -> None:
        """Fill nothing during the next updates, or fill it again."""
        ...


@contextmanager
def timed_update(engine: object, step: int, syncs: Sequence[Sync]) -> Iterator[bool]:
    """Fill no memory during the first sync after a step. The others fill it, and find what an update allocated and did not write.

    step: of the sync that follows. syncs: those before it. Yields whether the sync is timed.
    """
    is_timed = step > 0 and all(sync.step != step for sync in syncs)
    if not is_timed or not isinstance(engine, TimedEngine):
        yield is_timed
        return
    engine.time_updates(True)
    yield True
    engine.time_updates(False)
