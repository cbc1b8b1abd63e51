"""Worker processes start early, are replaced when they die, and never outlive the scan."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import ckptcheck.values.value_pass as value_pass
import ckptcheck.values.worker_pool as worker_pool
from ckptcheck.errors import describe_shortage
from ckptcheck.values.worker import Batch
from ckptcheck.values.worker_pool import Worker, WorkerPool
from tests.factories.checkpoint_cases import edit_tensors
from tests.factories.value_cases import read_values, start_value_pass


def test_workers_start_before_a_rule_asks_for_values(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets as many batches as fit into its pipe; the others are scanned later, and none is lost or scanned twice."""
    monkeypatch.setattr(value_pass, "MIN_BYTES_FOR_WORKERS", 0)
    monkeypatch.setattr(value_pass, "MAX_BATCH_BYTES", 64)
    assigned: list[Batch] = []
    monkeypatch.setattr(
        WorkerPool,
        "_assign",
        lambda self, process, batch, give=WorkerPool._assign: (give(self, process, batch), assigned.append(batch)),
    )
    plain = read_values(folder, use_mmap=False)
    reader, ckpt = start_value_pass(folder)
    assert len(assigned) == 2 * worker_pool.PREFILL_ROUNDS
    assert ckpt.values == plain
    reader.close()
    monkeypatch.setattr(worker_pool, "PIPE_BYTES", 100)
    assigned.clear()
    reader, ckpt = start_value_pass(folder)
    assert len(assigned) < 2 * worker_pool.PREFILL_ROUNDS
    assert ckpt.values == plain
    reader.close()


def test_no_worker_outlives_the_pass(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def children() -> set[str]:
        return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())

    monkeypatch.setattr(value_pass, "MIN_BYTES_FOR_WORKERS", 0)
    before = children()
    assert read_values(folder, jobs=2).tensors
    assert children() == before
    reader, ckpt = start_value_pass(folder)
    assert len(children() - before) == 2
    assert ckpt.values.tensors
    reader.close()
    assert children() == before


def test_a_worker_that_sigbus_kills_does_not_kill_the_scan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file shrinks while a worker has it mapped, so the system kills the worker by SIGBUS."""
    big = folder / "model-00001-of-00003.safetensors"
    edit_tensors(big, {"big": {"dtype": "F32", "shape": [1 << 20]}})
    monkeypatch.setattr(value_pass, "MIN_BYTES_FOR_WORKERS", 0)
    monkeypatch.setattr(value_pass, "MAX_BATCH_BYTES", 1 << 16)
    cut = []

    def shrink(done: int, total: int) -> None:
        if not cut:
            cut.append(done)
            with big.open("r+b") as file:
                file.truncate(1 << 18)

    stats = read_values(folder, jobs=1, progress=shrink)
    assert stats.shrunk == {big.name: "the file shrank while it was being read"}
    assert {tensor.shard for tensor in stats.tensors.values()} == {
        f"model-0000{number}-of-00003.safetensors" for number in (2, 3)
    }


def test_a_worker_that_dies_of_anything_else_loses_no_values(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little memory, or the limit of its processor time, ends it while its file is sound."""
    monkeypatch.setattr(value_pass, "MIN_BYTES_FOR_WORKERS", 0)
    monkeypatch.setattr(value_pass, "MAX_BATCH_BYTES", 64)
    plain = read_values(folder, use_mmap=False)
    assigned: list[object] = []

    def assign(self: WorkerPool, worker: Worker, batch: Batch, give: Callable[..., None] = WorkerPool._assign) -> None:
        if (number := len(assigned)) in (5, 40):
            worker.kill()
        assigned.append(number)
        give(self, worker, batch)

    monkeypatch.setattr(WorkerPool, "_assign", assign)
    assert read_values(folder, jobs=2) == plain


def test_a_process_that_may_open_no_more_files_says_so(folder: Path) -> None:
    """What said so was once imported then, which no longer worked: a traceback, and the exit code of findings."""
    start = (
        "import ckptcheck.values.value_pass as v; v.MIN_BYTES_FOR_WORKERS = 0; import ckptcheck.__main__ as m; m.main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", start, "scan", folder, "--jobs", "8"],
        capture_output=True, text=True, check=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8)),
    )  # fmt: skip
    assert ended.stderr == "ckptcheck: this process may open no more files (ulimit -n)\n"
    assert ended.returncode == 2


def test_a_pool_that_cannot_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pipes are closed, and the workers that did start are gone."""

    def count_open() -> int:
        return len(os.listdir("/proc/self/fd"))

    forks = iter([os.fork])
    monkeypatch.setattr(os, "fork", lambda: next(forks, refuse)())
    # A thread that an earlier test of this process left would make the pool start a Python instead.
    monkeypatch.setattr(worker_pool, "can_fork", lambda: True)
    before = count_open()
    with pytest.raises(BlockingIOError) as raised:
        WorkerPool(3)
    assert describe_shortage(raised.value) == "this process may start no more threads and processes (ulimit -u)"
    assert count_open() == before


def refuse() -> int:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
