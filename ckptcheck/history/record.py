"""The file of syncs: JSON Lines, one sync a line, appended so that a crash loses at most the line it was writing.

Every line stands by itself: reading needs no other, and a line that is damaged costs that sync alone. The file is bounded:
when it has twice the number of syncs to keep, it is written anew with the last of them, whole or not at all. A file that is
no record is left as it is, and so are lines of a record that are no syncs: somebody else wrote them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ckptcheck.errors import CkptcheckError
from ckptcheck.writing import replace_file

SCHEMA = "ckptcheck-sync/1"
BEGIN = f'{{"schema":"{SCHEMA}"'.encode()
"""What `Record` begins every line with."""
OURS = re.compile(rb'\s*\{\s*"schema"\s*:\s*"' + re.escape(SCHEMA.encode()) + rb'"')
"""A sync as anybody may write it, or the part of one that was written before a crash."""
KEEP = 100
"""Syncs that are kept where the caller says no other number. One of 700 tensors takes 70 kB."""
LONGEST = 1 << 27
"""Bytes of a line that is read: a sync of 500,000 tensors, both sides, has 90 MB."""
RUN = uuid.uuid4().hex[:12]
"""This process: versions and steps may start anew in the next."""


class Sync(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="schema", tag=SCHEMA):
    """One weight sync.

    time: when it ended, UTC, ISO 8601. run: the process that recorded it. step: optimizer steps that the trainer had taken.
    before, version: what the engine reported as its weight version before and after; None where it reports none. loss: the
    trainer's last, in any unit. seconds: of the sync; checked: of digests and of asking the engine. nbytes: sent.
    ok, message: what the update call answered. trainer, engine: which.
    sent: the trainer's name of a tensor → digest of what it exported. held: ``rank/name`` → the engine's digest afterwards.
    alike: both digests come from the same function, so that equal bytes give equal digests.
    """

    time: str = ""
    run: str = ""
    step: int | None = None
    before: str | None = None
    version: str | None = None
    loss: float | None = None
    seconds: float = 0.0
    checked: float = 0.0
    nbytes: int = 0
    ok: bool = True
    message: str = ""
    trainer: str = ""
    engine: str = ""
    sent: dict[str, str] = {}
    held: dict[str, str] = {}
    alike: bool = False


class Record:
    """A file that syncs are appended to. keep: how many of the last ones stay. Raises CkptcheckError for less than 2."""

    def __init__(self, path: Path | str, *, keep: int = KEEP) -> None:
        if keep < 2:
            raise CkptcheckError("a record keeps at least 2 syncs: less tells nothing")
        self.path, self.keep = Path(path), keep
        self._syncs: int | None = None

    def check(self) -> None:
        """Look whether a sync could be appended, before there is one. Raises CkptcheckError as `append` does."""
        try:
            if self.path.exists():
                os.close(os.open(self.path, os.O_RDWR | os.O_APPEND))
                self._own()
            elif not os.access(self.path.parent, os.W_OK | os.X_OK):
                raise OSError(f"nothing can be made in {self.path.parent}")
        except OSError as error:
            raise self._unwritable(error) from error

    def append(self, sync: Sync) -> None:
        """Append one sync; `time` and `run` are filled in.

        Raises CkptcheckError where it cannot be written, and where the file holds something else than syncs.
        """
        sync.run = sync.run or RUN
        sync.time = sync.time or now()
        line = msgspec.json.encode(sync) + b"\n"
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            with os.fdopen(handle, "r+b", buffering=0) as file, _alone(file.fileno()):
                size = file.seek(0, os.SEEK_END)
                if self._syncs is None and size:
                    self._own()
                if size and os.pread(file.fileno(), 1, size - 1) != b"\n":  # whoever wrote last was cut off
                    line = b"\n" + line
                file.write(line)
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unwritable(error) from error
        self._bound()

    def _own(self) -> None:
        """Raise CkptcheckError where the first line is no sync, nor one that was cut off. An empty file is anybody's."""
        first, second = itertools.islice(itertools.chain((line for _, line in _lines(self.path)), (b"", b"")), 2)
        if not OURS.match(first) and not (BEGIN.startswith(first) and (OURS.match(second) or not second)):
            raise CkptcheckError(
                f"{self.path} is not a record of syncs, and is left as it is", "name another file, or none that exists"
            )

    def _unwritable(self, error: OSError) -> CkptcheckError:
        return CkptcheckError(f"cannot write the record {self.path}: {error.strerror or error}")

    def _bound(self) -> None:
        """Write the file anew with the last syncs once it has twice as many; lines that are none stay where they are."""
        if self._syncs is None:
            self._syncs = sum(1 for _, line in _lines(self.path) if OURS.match(line))
        else:
            self._syncs += 1
        if self._syncs >= 2 * self.keep:
            lines = [line for _, line in _lines(self.path)]
            places = [place for place, line in enumerate(lines) if OURS.match(line)]
            gone = set(places[: -self.keep])
            kept = [line for place, line in enumerate(lines) if place not in gone]
            replace_file(self.path, b"\n".join(kept) + b"\n")
            self._syncs = len(places) - len(gone)


def now() -> str:
    """Return the time as a record writes it: UTC, ISO 8601, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def read(path: Path | str) -> tuple[tuple[Sync, ...], dict[int, str]]:
    """Return the syncs of a file and the lines that are none (number → why); a last line that was cut off is left out.

    Raises CkptcheckError where it cannot be read, and where no line of it is a sync.
    """
    path = Path(path)
    syncs: list[Sync] = []
    damaged: dict[int, str] = {}
    decoder = msgspec.json.Decoder(Sync)
    try:
        cut = path.stat().st_size > 0 and not _ends(path)
        for number, line in _lines(path):
            try:
                sync = decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                damaged[number] = str(error)
                continue
            if sync.run:
                syncs.append(sync)
            else:  # any object without fields of other types is a sync with nothing in it
                damaged[number] = "it says of no process that recorded it"
    except OSError as error:
        raise CkptcheckError(f"cannot read the record {path}: {error.strerror or error}") from error
    if cut and damaged and max(damaged) == number:
        del damaged[number]
    if not syncs:
        raise CkptcheckError(
            f"{path} is not a record of syncs" if damaged else f"{path} holds no sync",
            "ckptcheck refit --record writes one, and so does ckptcheck.watch",
        )
    return tuple(syncs), damaged


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of every line that is not blank; one that is too long comes cut, so that it is damaged."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LONGEST):
            number += 1
            if not line.endswith(b"\n") and len(line) == LONGEST:
                while (rest := file.readline(LONGEST)) and not rest.endswith(b"\n"):
                    pass
            if line.strip():
                yield number, line.rstrip(b"\n")


def _ends(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


@contextlib.contextmanager
def _alone(handle: int) -> Iterator[None]:
    """Hold the file against other writers, where the system can."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)
