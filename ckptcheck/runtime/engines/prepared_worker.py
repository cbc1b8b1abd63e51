"""A worker that imports its engine in the background, while the trainer loads or the engine under test scores."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from ckptcheck.errors import CkptcheckError
from ckptcheck.runtime.process.client import WorkerClient
from ckptcheck.runtime.process.errors import RemoteError, WorkerDied


class PreparedWorker:
    """Starts a worker in a thread and has it import its engine. Take it or close it; nothing else ends it."""

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
        except (CkptcheckError, OSError) as error:
            self._error = error

    def take(self) -> WorkerClient:
        """Wait for the worker and return it, once. Raises what `WorkerClient` raises, also where it died while it imported."""
        self._thread.join()
        with self._lock:
            worker, self._worker = self._worker, None
        if self._error is not None:
            raise self._error
        if worker is None:
            raise WorkerDied("the prepared worker was taken or closed before")
        return worker

    def close(self) -> None:
        """End the worker, unless it was taken, and wait until it has ended. May be called twice."""
        with self._lock:
            self._is_closed = True
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.close(0)
        # a worker that starts at this moment is ended by the thread itself
        self._thread.join()
