"""``refit history --watch`` follows the record of a job that runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.runs.history.follow import follow_history
from ckptcheck.runs.history.record import Record, SyncRecord


class Waits:
    """Lets a test act each time that the follower waits; ends it after the last action."""

    def __init__(self, *actions: Any) -> None:
        self.actions = list(actions)

    def __call__(self) -> None:
        if not self.actions:
            raise KeyboardInterrupt
        self.actions.pop(0)()


def collect(path: Path, *actions: Any) -> Iterator[int]:
    """Yield the number of syncs of each history."""
    try:
        for history in follow_history(path, Waits(*actions)):
            yield len(history.syncs)
    except KeyboardInterrupt:
        return


def sync(step: int) -> SyncRecord:
    return SyncRecord(step=step, version=str(step), sent={"a.weight": f"{step:032x}"})


def test_each_sync_gives_a_history_and_waiting_gives_none(tmp_path: Path) -> None:
    path = tmp_path / "syncs.jsonl"
    record = Record(path)
    numbers = collect(
        path, lambda: None, lambda: record.append(sync(0)), lambda: None, lambda: record.append(sync(1)), lambda: None
    )
    assert list(numbers) == [1, 2]


def test_a_sync_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "syncs.jsonl"
    Record(path).append(sync(0))
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    assert list(collect(path, lambda: path.write_bytes(whole))) == [1]


def test_a_file_that_is_no_record_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("step 1\nstep 2\n", encoding="utf-8")
    with pytest.raises(CkptcheckError, match="not a record of syncs"):
        list(collect(path))


def test_the_command_prints_each_sync_once_and_ends_with_the_code_of_the_record(tmp_path: Path) -> None:
    path = tmp_path / "syncs.jsonl"
    record = Record(path, keep=2)
    command = [sys.executable, "-m", "ckptcheck", "refit", "history", "--watch", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    for step in range(5):  # the record drops its oldest ones on the way
        record.append(sync(step))
        lines.append(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    rest, said = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, ""), said
    assert [line.split(" · ")[0] for line in lines] == [f"step {step}" for step in range(5)]
    os.unlink(path)


def test_the_command_says_a_finding_once(tmp_path: Path) -> None:
    path = tmp_path / "syncs.jsonl"
    record = Record(path)
    record.append(sync(0))
    record.append(SyncRecord(step=1, ok=False, message="it timed out"))
    command = [sys.executable, "-m", "ckptcheck", "refit", "history", "--watch", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    record.append(sync(2))
    lines.append(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert (process.returncode, rest) == (1, "")
    assert sum(line.startswith("error HIS") for line in lines) == 1
