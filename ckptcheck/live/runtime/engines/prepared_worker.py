"""Workers that import their engine in the background, while the trainer loads or the engine under test scores."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Protocol

from ckptcheck.live.runtime.process.client import WorkerClient
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied


class StartWorker(Protocol):
    """Starts a worker, as a copy of `template` if given."""

    def __call__(self, *, template: WorkerClient | None = None) -> WorkerClient:
        """Start it. Raises what `WorkerClient` raises."""
        ...


class PreparedWorkers:
    """The workers of an engine that starts several times. If that is safe, they are copies of one that imported it.

    Close it when the workers are no longer needed: a copy ends with its original.
    """

    def __init__(self, start: StartWorker, starts: int, *, copies: bool) -> None:
        """Begin to import.

        Args:
            start: starts a worker.
            starts: how many workers to prepare.
            copies: whether to try to copy the first one.
        """
        self._start, self._starts, self._copies = start, starts, copies
        self._next: PreparedWorker | None = PreparedWorker(start)
        self._template: WorkerClient | None = None

    def take(self) -> WorkerClient:
        """Return a worker that has imported its engine. Raises as `WorkerClient`, also if it died meanwhile."""
        self._starts -= 1
        if self._template is None:
            ready = self._next or PreparedWorker(self._start)
            self._next = None
            if not self._copies:
                self._prepare_next()
                return ready.take()
            self._template = ready.take()
        try:
            return self._start(template=self._template)
        except RemoteError:
            # It runs threads, or has touched a device, so it cannot be copied: it serves once, like any other worker.
            self._copies = False
            worker, self._template = self._template, None
            self._prepare_next()
            return worker

    def _prepare_next(self) -> None:
        """Import the next one meanwhile: an engine starts on one core."""
        if self._starts > 0:
            self._next = PreparedWorker(self._start)

    def close(self) -> None:
        """End the workers that nobody took, and the original of the copies. May be called twice."""
        if self._next is not None:
            self._next.close()
        if self._template is not None:
            self._template.close(0)


class PreparedWorker:
    """Starts a worker in a thread and has it import its engine. Only `take` or `close` ends it."""

    def __init__(self, start: Callable[[], WorkerClient]) -> None:
        self._start = start
        self._worker: WorkerClient | None = None
        self._is_closed = False
        self._error: Exception | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._prepare, daemon=True)
        self._thread.start()

    def _prepare(self) -> None:
        try:
            worker = self._start()
            with self._lock:
                if not self._is_closed:
                    self._worker = worker
            if self._is_closed:
                worker.close(0)
                return
            # an import that fails here fails again when the engine starts, which says more
            with contextlib.suppress(RemoteError):
                worker.call("prepare")
        except Exception as error:
            # `take` raises it, whatever it is
            self._error = error

    def take(self) -> WorkerClient:
        """Wait for the worker and return it, once. Raises as `WorkerClient`, also if it died while it imported."""
        self._thread.join()
        with self._lock:
            worker, self._worker = self._worker, None
        if self._error is not None:
            raise self._error
        if worker is None:
            raise WorkerDied("the prepared worker was taken or closed before")
        return worker

    def close(self) -> None:
        """End the worker, unless somebody took it, and wait until it has ended. May be called twice."""
        with self._lock:
            self._is_closed = True
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.close(0)
        # the thread itself ends a worker that starts at this moment
        self._thread.join()
