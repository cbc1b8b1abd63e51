"""Imports each engine once for all tests of a process, and copies it for each start: its imports take longer than its start."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ckptcheck.live.runtime.engines.prepared_worker import StartWorker
from ckptcheck.live.runtime.engines.remote import RemoteEngine
from ckptcheck.live.runtime.environments.interpreter import find_interpreter
from ckptcheck.live.runtime.process.client import WorkerClient
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied, WorkerTimeout

MOST = 4
"""Workers that are kept: each takes half a gigabyte."""


class ImportedEngines:
    """Workers that have only imported their engine, by what they were started with; they live as long as the tests."""

    def __init__(self, original: Callable[..., partial[WorkerClient]]) -> None:
        """original: the function under `RemoteEngine.worker_starter`."""
        self._original = original
        self._workers: dict[Hashable, WorkerClient] = {}
        self.copies = True
        """Whether engines are copied; where not, each is imported."""

    def start_copy(self, key: Hashable, start_bare: StartWorker, start: StartWorker) -> WorkerClient:
        """Start a worker, as a copy of one that has imported the same engine where that is possible.

        start_bare: starts the worker that is copied, start: the copy.
        """
        if key not in self._workers and len(self._workers) < MOST:
            worker = start_bare()
            try:
                worker.call("prepare")
            except (RemoteError, WorkerDied, WorkerTimeout):
                worker.close(0)
            else:
                self._workers[key] = worker
        if key not in self._workers:
            return start()
        try:
            return start(template=self._workers[key])
        except (RemoteError, WorkerDied, WorkerTimeout):
            # its copies end with it, so it is kept
            return start()

    def close(self) -> None:
        """End all workers, and what was copied from them."""
        for worker in self._workers.values():
            worker.close(0)
        self._workers.clear()

    def share_starter(self) -> classmethod[Any, Any, StartWorker]:
        """Return a `RemoteEngine.worker_starter` whose workers are copied. Those of engines for GPUs are not."""

        def worker_starter(
            cls: type[RemoteEngine[Any]],
            ranks: int,
            python: Path | None,
            gpus: str | None,
            log: Path | None,
            scratch: Sequence[Path],
        ) -> StartWorker:
            start = self._original(cls, ranks, python, gpus, log, scratch)
            if not self.copies or gpus is not None or not find_interpreter(cls.name, python).is_cpu_build:
                return start
            bare = partial(start.func, *start.args, **{**start.keywords, "log": None, "scratch": ()})

            def start_worker(*, template: WorkerClient | None = None) -> WorkerClient:
                if template is not None:
                    return start(template=template)
                variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
                key = (start.args, frozenset(start.keywords["env"].items()), frozenset(variables.items()))
                return self.start_copy(key, bare, start)

            return start_worker

        return classmethod(worker_starter)
