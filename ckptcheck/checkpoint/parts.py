"""The parts of a checkpoint, read file by file; what could not be read is noted with the reason, and stops nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ckptcheck.checkpoint.source import Source

T = TypeVar("T")


class Parts:
    """Reads parts of a source. unread: file → why it could not be read."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.unread: dict[str, str] = {}

    def read(self, name: str, reader: Callable[[Source, str], T | None]) -> T | None:
        """Read a part; None where it cannot be read, and for a link that leaves the target (a finding, never followed)."""
        if self._source.files[name].leaves is not None:
            return None
        try:
            return reader(self._source, name)
        except FileNotFoundError:
            self.unread[name] = "it disappeared while it was being read"
        except OSError as error:
            self.unread[name] = error.strerror or str(error)
        return None

    def read_all(
        self,
        names: Sequence[str],
        reader: Callable[[Source, str], T | None],
        *,
        jobs: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[T]:
        """Read many parts at once and return those that could be read, in order. progress: told how many of how many."""
        pool = ThreadPoolExecutor(min(jobs, max(len(names), 1)))
        found = []
        try:
            for done, part in enumerate(pool.map(lambda name: self.read(name, reader), names), 1):
                if part is not None:
                    found.append(part)
                if progress is not None:
                    progress(done, len(names))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # on Ctrl-C nobody waits for a slow disk
        return found
