"""A worker that imports its engine in the background, while the trainer loads or the engine under test scores."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from ckptcheck.errors import CkptcheckError
from ckptcheck.runtime.process.client import WorkerClient


class PreparedWorker:
    """Starts a worker in a thread and has it import its engine. Take it or close it; nothing else ends it."""

    def __init__(self, start: Callable[[], WorkerClient]) -> None:
        self._start = start
        self._worker: WorkerClient | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._prepare, daemon=True)
        self._thread.start()

    def _prepare(self) -> None:
        # whatever fails here fails again, and with its reason, when the engine is started
        with contextlib.suppress(CkptcheckError, OSError):
            worker = self._start()
            with self._lock:
                if not self._is_closed:
                    self._worker = worker
            if self._is_closed:
                worker.close(0)
            else:
                worker.call("prepare")

    def take(self) -> WorkerClient | None:
        """Wait for the worker and return it, once; None if it did not start."""
        self._thread.join()
        with self._lock:
            worker, self._worker = self._worker, None
        return worker if worker is not None and worker.is_alive else None

    def close(self) -> None:
        """End the worker, unless it was taken, and wait until it has ended. May be called twice."""
        with self._lock:
            self._is_closed = True
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.close(0)
        # a worker that starts at this moment is ended by the thread itself
        self._thread.join()
