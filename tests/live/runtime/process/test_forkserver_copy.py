"""Processes that multiprocessing forks have what the worker has imported, and nothing that it talks by."""

from __future__ import annotations

import os
import sys

import pytest

from ckptcheck.live.runtime.process.client import WorkerClient
from tests.live.runtime.process.test_worker_client import PYTHON
from tests.paths import DOUBLES

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and PR_SET_CHILD_SUBREAPER")
SECONDS = 60


@pytest.mark.parametrize("has_thread", [False, True], ids=["one-thread", "another-thread"])
def test_processes_are_forked_from_a_copy_where_that_is_safe(has_thread: bool) -> None:
    with WorkerClient(PYTHON, DOUBLES / "forked_processes.py") as worker:
        worker.call("prepare")
        if has_thread:
            worker.call("start_thread")
        server = worker.call("start_forkserver", timeout=SECONDS)
        seen = [worker.call("run", timeout=SECONDS) for _ in range(2)]
        imported = [] if has_thread else [worker._process.pid]
        # one socket: by which multiprocessing passes the report
        alone = {"imported": imported, "parent": server, "talks": 0, "own": True, "code": 5}
        assert seen == [alone, alone]
        worker.call("stop_forkserver", timeout=SECONDS)
        assert not os.path.exists(f"/proc/{server}")
