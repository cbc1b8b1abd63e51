"""Reads a checkpoint file by file. It records an unreadable file with the reason, and goes on with the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ckptcheck.checkpoint.source import Source

T = TypeVar("T")


class FileReader:
    """Reads the files of a source and records those that cannot be read."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.unread: dict[str, str] = {}
        """File → why it could not be read."""

    def read(self, name: str, reader: Callable[[Source, str], T | None]) -> T | None:
        """Read a file; None if it cannot be read or is a link out of the target (never followed; a rule reports it)."""
        if self._source.files[name].outside_link is not None:
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
        """Read many files in threads and return the results of those that could be read, in order.

        progress: called with the number of files read and the number of all files.
        """
        pool = ThreadPoolExecutor(min(jobs, max(len(names), 1)))
        results = []
        try:
            for done, part in enumerate(pool.map(lambda name: self.read(name, reader), names), 1):
                if part is not None:
                    results.append(part)
                if progress is not None:
                    progress(done, len(names))
        finally:
            # Do not wait: on Ctrl-C a slow disk must not delay the exit.
            pool.shutdown(wait=False, cancel_futures=True)
        return results
