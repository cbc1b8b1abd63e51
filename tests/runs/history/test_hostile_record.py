"""A record is anybody's file: what takes its place is one sentence, for a look at it and while it is followed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.runs.history import record
from ckptcheck.runs.history.follow import follow_history
from ckptcheck.runs.history.history import open_history


def put_pipe(path: Path) -> None:
    os.mkfifo(path)


def put_endless_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def put_sparse_file(path: Path) -> None:
    path.touch()
    os.truncate(path, 40 << 30)


IN_PLACE: list[tuple[Callable[[Path], None], str]] = [
    (put_pipe, "it is a pipe, not a file"),
    (put_endless_device, "it is a device or a socket, not a file"),
    (Path.mkdir, "it is a folder, not a file"),
    (put_sparse_file, "line 1 has more than 65,536 bytes"),
]


@pytest.mark.parametrize(("put", "said"), IN_PLACE)
def test_what_is_no_record_is_refused(
    put: Callable[[Path], None], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "LONGEST", 4096)
    monkeypatch.setattr(record, "PIECE", 120)
    put(tmp_path / "record.jsonl")
    with pytest.raises(CkptcheckError, match=said):
        open_history(tmp_path / "record.jsonl")


@pytest.mark.parametrize(("put", "said"), IN_PLACE)
def test_what_is_no_record_is_not_followed(
    put: Callable[[Path], None], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "LONGEST", 4096)
    monkeypatch.setattr(record, "PIECE", 120)
    put(tmp_path / "record.jsonl")

    def wait() -> None:
        raise AssertionError("it waits for more")

    follower = follow_history(tmp_path / "record.jsonl", wait)
    if put is put_sparse_file:  # what has no whole line may be a first sync that is being written
        with pytest.raises(AssertionError, match="it waits for more"):
            next(follower)
    else:
        with pytest.raises(CkptcheckError, match=said):
            next(follower)
