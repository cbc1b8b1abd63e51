"""Counts the time that a server takes for answers that fail, so that a hostile one cannot hold a scan file by file."""

from __future__ import annotations

MAX_LOST_SECONDS = 100.0
"""Seconds that may be lost to answers that fail; then the server is asked no more."""


class LostTime:
    """The seconds that were lost to answers that failed. Threads may share it: what several lose at a time counts once."""

    def __init__(self) -> None:
        self._seconds = self._until = 0.0

    @property
    def is_over(self) -> bool:
        """Whether so much was lost that nothing more is asked."""
        return self._seconds > MAX_LOST_SECONDS

    def add(self, begun: float, ended: float) -> None:
        """Count the time of an answer, by a clock that never goes back."""
        self._seconds += max(0.0, ended - max(begun, self._until))
        self._until = max(ended, self._until)
