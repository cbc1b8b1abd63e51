"""A worker that has imported is copied instead of imported again; a copy lives and dies as a worker of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.engines.prepared_worker import PreparedWorkers
from ckptcheck.live.runtime.process.client import WorkerClient
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied, WorkerTimeout
from tests.live.runtime.process.test_worker_client import PYTHON, RPC_METHODS, gone, wait_until
from tests.paths import DOUBLES, ROOT

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and PR_SET_CHILD_SUBREAPER")


def copy(template: WorkerClient) -> WorkerClient:
    return WorkerClient(PYTHON, RPC_METHODS, template=template)


@pytest.fixture
def template() -> Iterator[WorkerClient]:
    with WorkerClient(PYTHON, RPC_METHODS) as running:
        running.call("prepare")
        yield running


def test_copies_have_what_was_imported_and_share_nothing_else(template: WorkerClient) -> None:
    with copy(template) as first, copy(template) as second:
        assert [first.call("count"), first.call("count"), second.call("count")] == [1, 2, 1]
        seen = [worker.call("where") for worker in (first, second, template)]
        assert len({entry["session"] for entry in seen}) == len({entry["parent"] for entry in seen}) == 3
        for worker, entry in zip((first, second), seen[:2], strict=True):
            assert Path(entry["cwd"]) == Path(entry["environment"]["TMPDIR"]) == worker.folder / "work"
            assert (entry["path"], entry["stdin"]) == (seen[2]["path"], "")
        first.call("talk", text="of the first")
        assert first.read_log_tail()[0] == "of the first"
        assert (second.read_log_tail(), template.read_log_tail()) == ((), ())
        assert first.call("collects") == [True, True]


def test_a_copy_ends_what_it_started_and_nothing_else(template: WorkerClient, tmp_path: Path) -> None:
    with copy(template) as stays, copy(template) as leaves:
        children = leaves.call("start_children", hold_the_socket=True)
        leaves.call("at_exit", path=str(tmp_path / "cleaned up"))
        folder = leaves.folder
        leaves.close()
        assert [child for child in children if not gone(child)] == []
        assert (folder.exists(), (tmp_path / "cleaned up").exists()) == (False, True)
        assert (stays.call("count"), template.call("count")) == (1, 1)
    with pytest.raises(WorkerDied, match="misbehaving is closed"):
        leaves.call("count")


@pytest.mark.parametrize(
    ("verb", "arguments", "ending"),
    [
        ("vanish", {"code": 0}, "exit code 0"),
        ("vanish", {"code": 7}, "exit code 7"),
        ("shoot", {"number": signal.SIGTERM}, "SIGTERM"),
        ("kill_group", {}, "SIGKILL: out of memory, or killed by somebody"),
        ("fork_and_vanish", {}, "exit code 3"),
        ("kill_the_family", {}, "SIGKILL: out of memory, or killed by somebody"),
        ("kill_the_parent", {}, "SIGKILL: out of memory, or killed by somebody"),
    ],
)
def test_the_death_of_a_copy_is_told_and_concerns_no_other(
    template: WorkerClient, verb: str, arguments: dict[str, int], ending: str
) -> None:
    with copy(template) as bystander:
        with copy(template) as worker, pytest.raises(WorkerDied) as caught:
            worker.call(verb, **arguments)
        assert caught.value.message == f"misbehaving died ({ending}) when asked to {verb.replace('_', ' ')}"
        if verb == "vanish":
            assert caught.value.log_tail == ("out of memory: cannot allocate",)
        assert (bystander.call("count"), template.call("count")) == (1, 1)


def test_a_copy_that_hangs_is_ended_and_says_where(template: WorkerClient) -> None:
    with copy(template) as worker, pytest.raises(WorkerTimeout) as caught:
        worker.call("hang_deaf", timeout=0.5)
    assert (caught.value.hint or "").startswith("it was in hang_here (misbehaving.py, line ")
    assert template.call("count") == 1


def test_copies_do_not_outlive_us(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from ckptcheck.live.runtime.process.client import WorkerClient
template = WorkerClient(Path(sys.executable), Path({str(RPC_METHODS)!r}))
copy = WorkerClient(Path(sys.executable), Path({str(RPC_METHODS)!r}), scratch=[{str(tmp_path / "scratch")!r}], template=template)
print(template.folder, copy.folder, template._process.pid, copy._process.pid, *copy.call("start_children"), flush=True)
copy.call("hang_deaf")
"""
    (tmp_path / "scratch").mkdir()
    us = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert us.stdout is not None
    first, second, *processes = us.stdout.readline().split()
    us.kill()
    us.wait()
    us.stdout.close()
    wait_until(lambda: all(gone(int(process)) for process in processes))
    wait_until(lambda: not any(Path(folder).exists() for folder in (first, second, tmp_path / "scratch")))


@pytest.mark.parametrize(
    ("verb", "reason"),
    [("start_thread", "it has 3 threads"), ("start_children", "it has started other processes")],
)
def test_a_process_with_threads_or_children_is_not_copied(
    template: WorkerClient, verb: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template.call(verb)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(RemoteError, match=reason):
        copy(template)
    assert template.call("count") == 1
    assert list(tmp_path.iterdir()) == []


class Started:
    """Starts workers, and counts them."""

    def __init__(self, file: str = "misbehaving.py") -> None:
        self.file, self.imported, self.copied = DOUBLES / file, 0, 0

    def __call__(self, *, template: WorkerClient | None = None) -> WorkerClient:
        worker = WorkerClient(PYTHON, self.file, template=template)
        self.imported += template is None
        self.copied += template is not None
        return worker


def test_workers_are_imported_once_and_end_with_what_they_were_copied_from() -> None:
    start = Started()
    workers = PreparedWorkers(start, 2, copies=True)
    taken = [workers.take() for _ in range(3)]
    assert [worker.call("count") for worker in taken] == [1, 1, 1]
    assert (start.imported, start.copied) == (1, 3)
    workers.close()
    for worker in taken:
        with pytest.raises(WorkerDied):
            worker.call("count")
        worker.close()
    workers.close()


def test_what_must_not_be_copied_is_imported_for_each_start() -> None:
    start = Started()
    workers = PreparedWorkers(start, 2, copies=False)
    with workers.take() as first, workers.take() as second, workers.take() as third:
        assert [worker.call("count") for worker in (first, second, third)] == [1, 1, 1]
        assert (start.imported, start.copied) == (3, 0)
        workers.close()
        assert second.call("count") == 2


def test_a_worker_that_cannot_be_copied_is_used_itself() -> None:
    start = Started("threaded.py")
    workers = PreparedWorkers(start, 2, copies=True)
    with workers.take() as first, workers.take() as second:
        assert {first.call("pid"), second.call("pid")} == {first._process.pid, second._process.pid}
        assert first._process.pid != second._process.pid
        workers.close()
        assert first.call("pid")
    assert (start.imported, start.copied) == (2, 0)


def test_what_was_prepared_and_never_taken_ends() -> None:
    before = set(os.listdir("/proc"))
    workers = PreparedWorkers(Started(), 2, copies=True)
    workers.close()
    workers.close()
    ours = [number for number in set(os.listdir("/proc")) - before if number.isdigit() and is_child(number)]
    assert ours == []


def is_child(number: str) -> bool:
    try:
        fields = Path(f"/proc/{number}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    return int(fields[1]) == os.getpid() and fields[0] != b"Z"


def test_a_python_that_cannot_be_run_is_said_when_the_engine_starts(tmp_path: Path) -> None:
    def start(*, template: WorkerClient | None = None) -> WorkerClient:
        return WorkerClient(tmp_path / "absent", RPC_METHODS, template=template)

    workers = PreparedWorkers(start, 2, copies=True)
    with pytest.raises(CkptcheckError, match="cannot run"):
        workers.take()
    workers.close()


def test_whatever_fails_while_it_is_prepared_is_said_when_the_engine_starts() -> None:
    def start(*, template: WorkerClient | None = None) -> WorkerClient:
        raise KeyError("a worker of another version")

    workers = PreparedWorkers(start, 1, copies=True)
    with pytest.raises(KeyError, match="a worker of another version"):
        workers.take()
    workers.close()
