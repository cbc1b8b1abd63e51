"""Trouble of a watch stays its own: the job goes on, and what the record holds can be read at any moment."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.runs.history import record as record_module
from ckptcheck.runs.history.history import open_history
from ckptcheck.runs.history.record import Record, SyncRecord, read_record
from ckptcheck.watch import SyncWarning, Watch
from ckptcheck.watch.record_claim import claim_record
from tests.paths import ROOT
from tests.watch.toy import Trainer

JOB = """
import os, sys, time
from ckptcheck.watch import Watch
watch = Watch(record=sys.argv[1], background="BACKGROUND" in os.environ, share=1e6, budget=600)
for step in range(int(sys.argv[2])):
    with watch(step=step) as sync:
        list(sync.sent({f"w{number}": f"{step:032x}" for number in range(2000)}.items()))
    print(step, flush=True)
    if sys.argv[3:]:
        sys.stdin.readline()
"""


def start_job(record: Path, syncs: int, *more: str, **variables: str) -> subprocess.Popen[str]:
    """Start a job of its own that syncs so many times; given more, it waits for a line after each."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-W", "always", "-c", JOB, str(record), str(syncs), *more]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


def sync_once(watch: Watch, trainer: Trainer) -> None:
    with watch(step=trainer.step_number) as sync:
        list(sync.sent(trainer.export()))
    trainer.step()


def test_a_record_that_cannot_be_written_is_said_once_and_the_next_sync_tries_again(tmp_path: Path) -> None:
    folder = tmp_path / "full"
    watch, trainer = Watch(record=folder / "syncs.jsonl"), Trainer()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            sync_once(watch, trainer)
        folder.mkdir()
        sync_once(watch, trainer)
        shutil.rmtree(folder)
        sync_once(watch, trainer)
    assert [str(each.message).partition(":")[0] for each in said] == ["ckptcheck.watch could not write the record"]
    assert len(watch.last) == 5


def test_a_function_for_findings_that_fails_does_not_end_the_job() -> None:
    def fail(_: object) -> None:
        raise ConnectionError("the pager is down")

    watch, trainer = Watch(on=fail), Trainer()
    with watch(step=0) as sync:
        list(sync.sent(trainer.export()))
    trainer.step(frozen=tuple(trainer.weights))
    with pytest.warns(SyncWarning, match="could not report HIS002: ConnectionError: the pager is down"):
        sync_once(watch, trainer)


def test_a_forked_worker_continues_the_record_and_is_another_process(tmp_path: Path) -> None:
    path, trainer = tmp_path / "syncs.jsonl", Trainer()
    watch = Watch(record=path, on="raise")
    for _ in range(2):
        sync_once(watch, trainer)
    child = os.fork()
    if not child:
        sync_once(watch, trainer)
        sync_once(watch, trainer)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    syncs, damaged = read_record(path)
    assert ([sync.step for sync in syncs], damaged) == ([0, 1, 2, 3], {})
    assert [sync.run == syncs[0].run for sync in syncs] == [True, True, False, False]
    assert len(list(tmp_path.glob("*.jsonl"))) == 1


def test_a_watch_goes_to_another_process_as_a_pickle(tmp_path: Path) -> None:
    watch, trainer = Watch(record=tmp_path / "syncs.jsonl"), Trainer()
    sync_once(watch, trainer)
    again = pickle.loads(pickle.dumps(watch))
    sync_once(again, trainer)
    assert len(read_record(tmp_path / "syncs.jsonl")[0]) == 2


@pytest.mark.slow
def test_two_ranks_that_were_given_one_file_write_two(tmp_path: Path) -> None:
    path = tmp_path / "syncs.jsonl"
    jobs: list[subprocess.Popen[str]] = []
    try:
        for rank in ("0", "3", ""):
            jobs.append(job := start_job(path, 3, "waits", RANK=rank))
            assert job.stdout is not None
            assert job.stdout.readline() == "0\n"
        said = [job.communicate("\n" * 3, timeout=300)[1] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    assert "writes" not in said[0]
    assert said[1].count("this one records to") == 1
    assert {each.name for each in tmp_path.glob("*.jsonl")} == {"syncs.jsonl", "syncs.rank3.jsonl", "syncs.2.jsonl"}
    for each in tmp_path.glob("*.jsonl"):
        assert [sync.step for sync in open_history(each).syncs] == [0, 1, 2]


@pytest.mark.slow
def test_a_job_that_is_killed_leaves_a_readable_record_and_its_successor_continues_it(tmp_path: Path) -> None:
    path = tmp_path / "syncs.jsonl"
    for number in range(4):
        job = start_job(path, 10_000)
        assert job.stdout is not None
        for _ in range(3 + number):
            job.stdout.readline()
        time.sleep(0.003 * number)
        job.send_signal(signal.SIGKILL)
        job.communicate()
        syncs, damaged = read_record(path)
        assert not damaged or "truncated" in next(iter(damaged.values())), damaged
        assert len({sync.run for sync in syncs}) == number + 1
    assert [each.name for each in tmp_path.glob("*.jsonl")] == ["syncs.jsonl"]


def test_a_job_that_ends_and_one_that_is_killed_while_syncs_are_checked_beside_them(tmp_path: Path) -> None:
    """What ends by itself waits for its checks; what is killed loses those that wait, and leaves a readable record."""
    path = tmp_path / "syncs.jsonl"
    done = start_job(path, 5, BACKGROUND="1")
    begin, end = done.communicate(timeout=300)[1].splitlines()
    assert begin.startswith(
        "ckptcheck.watch: watches what the trainer sends (2,000 tensors, 0.002 MB); looks at every sync"
    )
    assert end.startswith("ckptcheck.watch: 5 syncs, 2,000 of 2,000 tensors looked at within the last 5; no findings; ")
    assert [sync.step for sync in read_record(path)[0]] == [0, 1, 2, 3, 4]
    job = start_job(path, 10_000, BACKGROUND="1")
    assert job.stdout is not None
    while path.read_bytes().count(b"\n") < 8:
        assert job.stdout.readline()
    job.send_signal(signal.SIGKILL)
    job.communicate()
    syncs, damaged = read_record(path)
    assert not damaged or "truncated" in next(iter(damaged.values())), damaged
    assert len({sync.run for sync in syncs}) == 2


def test_a_file_that_another_process_keeps_locked_holds_a_sync_up_for_a_second_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    path = tmp_path / "syncs.jsonl"
    Record(path).append(SyncRecord(step=0))
    monkeypatch.setattr(record_module, "LOCK_PATIENCE", 0.05)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        watch = Watch(record=path)
        with pytest.warns(SyncWarning, match="could not write the record: .*another process keeps it locked"):
            sync_once(watch, Trainer())


@pytest.mark.parametrize("error", record_module.NO_LOCKS)
def test_a_file_system_without_locks_has_records_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("fcntl.flock", refuse)
    monkeypatch.setattr("fcntl.lockf", refuse)
    watch = Watch(record=tmp_path / "syncs.jsonl")
    with warnings.catch_warnings():
        warnings.simplefilter("error", SyncWarning)
        sync_once(watch, Trainer())
    assert len(read_record(tmp_path / "syncs.jsonl")[0]) == 1


def test_a_disk_that_fills_up_within_a_line_is_said_and_leaves_no_half_of_it(tmp_path: Path) -> None:
    """A system writes what fits, without an error. A limit on the size of files stands in for the disk."""
    resource = pytest.importorskip("resource")
    path = tmp_path / "syncs.jsonl"
    watch, trainer = Watch(record=path), Trainer()
    sync_once(watch, trainer)
    whole = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 50, limits[1]))
    try:
        with pytest.warns(SyncWarning, match="cannot write the record"):
            sync_once(watch, trainer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == whole
    sync_once(watch, trainer)
    assert [sync.step for sync in open_history(path).syncs] == [0, 2]


@pytest.mark.parametrize(
    "put", [os.mkfifo, lambda path: path.symlink_to(path.with_name("elsewhere"))], ids=["pipe", "link"]
)
def test_a_lock_that_is_no_file_holds_nothing_up_and_writes_nowhere(put: Any, tmp_path: Path) -> None:
    put(tmp_path / ".syncs.jsonl.lock")
    assert claim_record(tmp_path / "syncs.jsonl") == tmp_path / "syncs.jsonl"
    assert not (tmp_path / "elsewhere").exists()
