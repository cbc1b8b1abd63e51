"""The record of syncs: JSON Lines, one sync per line, appended so that a crash loses at most the line being written.

Every line stands alone, so a damaged line costs only that sync. The file is bounded: at twice the number of syncs to keep, it
is rewritten with the last ones, completely or not at all. `Record` never changes a file that is not a record, and keeps
lines that are not syncs, because another program wrote them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import itertools
import json
import math
import os
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ckptcheck.errors import CkptcheckError, OutputError
from ckptcheck.text.file_io import open_regular_stream, replace_file

SCHEMA = "ckptcheck-sync/1"
BEGIN = f'{{"schema":"{SCHEMA}"'.encode()
"""The first bytes of every line that `Record` writes."""
OURS = re.compile(rb'\s*\{\s*"schema"\s*:\s*"' + re.escape(SCHEMA.encode()) + rb'"')
"""The beginning of a sync as any JSON writer may format it, complete or cut off by a crash."""
RUN_AND_STEP = re.compile(rb'"run":"([0-9a-f-]+)","step":(\d+)')
"""Process and step of a line as `Record` writes it."""
KEEP = 100
"""Syncs that a record keeps by default. A sync of 700 tensors takes 70 kB."""
LONGEST = 1 << 27
"""Bytes of the longest line that is read: a sync of 500,000 tensors, both sides, has 90 MB."""
PIECE, MOST_PIECES = 1 << 20, 512
"""Bytes and number of the pieces to read in search of the end of a longer line."""
NO_BYTES = frozenset({"0" * 32, hashlib.sha256(b"").hexdigest()})
"""Digests of a tensor without bytes, ckptcheck's and that of vLLM's servers: the engine computes with something else."""
PLAINLY = ("the values of", "multiplied by", "rounded to", "all zero", "NaN", "infinite", "transposed")
"""How `SyncRecord.altered` begins where an engine has something that no engine's own layout explains."""
RUN_ID = uuid.uuid4().hex[:12]
"""Identifies the process that imported this module; see `run_id`."""
_IMPORTED_BY = os.getpid()
LOCK_PATIENCE = 1.0
"""Seconds to wait for another process that writes to the same file: a job must not wait for a suspended one."""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems without locks, such as some network file systems."""


def run_id() -> str:
    """Return an id of this process. Another process, also a forked one, may restart versions and steps."""
    return RUN_ID if os.getpid() == _IMPORTED_BY else f"{RUN_ID}-{os.getpid()}"


class GapRecord(msgspec.Struct, omit_defaults=True, frozen=True):
    """The gap between the logprobs of engine and trainer that the job itself logged, for the tokens of one step."""

    name: str
    """The metric, as the job calls it."""
    value: float | None
    """As it was logged; None where it was no finite number."""
    step: int | None = None
    """The step whose tokens it is about, counted as syncs are."""
    dtype: str = ""
    """In which both sides compute, the narrower of two; "" if that is not known."""


class LoggedStep(msgspec.Struct, omit_defaults=True, frozen=True):
    """What else a job logged of one of its steps."""

    step: int
    gradient: float | None = None
    """The norm of the gradient, before it is clipped; None if the job does not log it."""
    zeros: dict[str, float] = {}
    """Numbers that are 0 at step 0, where a model is compared with itself, by the job's names. All are finite."""
    logprob: float | None = None
    """The trainer's mean logprob of the tokens that the engine drew."""

    def join(self, later: LoggedStep) -> LoggedStep:
        """Return it with what was logged of the same step later."""
        gradient = self.gradient if later.gradient is None else later.gradient
        logprob = self.logprob if later.logprob is None else later.logprob
        return LoggedStep(self.step, gradient, {**self.zeros, **later.zeros}, logprob)


class ProbeRecord(msgspec.Struct, omit_defaults=True, frozen=True):
    """How far the logprobs of engine and trainer were apart on fixed sequences, right after a sync."""

    mean: float | None
    """Mean |Δ| over the tokens, in nats; None where a logprob was no finite number, for which JSON has no other word."""
    most: float | None
    """Largest |Δ|, in nats; None as for the mean."""
    tokens: int
    """Number of tokens."""
    floor: float | None = None
    """Mean |Δ| of equal weights on both sides, from a calibration of this model; None without one."""
    file: str = ""
    """The file that has the logprobs, "" if they were not kept."""
    drawn: float | None = None
    """Mean |Δ| of tokens that the engine drew with the job's sampling settings, through its prefix cache; None if it drew none."""
    dtype: str = ""
    """In which both sides compute; "" if that is not known."""

    def __post_init__(self) -> None:
        """Keep what another writer has for no finite number."""
        if self.mean is not None and self.most is not None and not math.isfinite(self.mean + self.most):
            msgspec.structs.force_setattr(self, "mean", None)
            msgspec.structs.force_setattr(self, "most", None)


class SyncRecord(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="schema", tag=SCHEMA):
    """One weight sync as a record stores it. The field names are the file format."""

    time: str = ""
    """When the sync ended: UTC, ISO 8601."""
    run: str = ""
    """The process that recorded it."""
    step: int | None = None
    """Optimizer steps that the trainer had taken."""
    before: str | None = None
    """Weight version that the engine reported before the sync, None if it reports none."""
    version: str | None = None
    """Weight version that the engine reported after the sync."""
    loss: float | None = None
    """The trainer's last loss, in any unit; None without one, and where it was no finite number."""
    not_finite: bool = False
    """Whether the loss was no finite number."""
    seconds: float = 0.0
    """Duration of the sync."""
    checked: float = 0.0
    """Seconds that the job waited for digests and for answers of the engine."""
    nbytes: int = 0
    """Bytes sent."""
    ok: bool = True
    """Whether the update call reported success."""
    message: str = ""
    """The answer of the update call."""
    trainer: str = ""
    engine: str = ""
    sent: dict[str, str] = {}
    """The trainer's name of a tensor → digest of what it exported."""
    cast: dict[str, str] = {}
    """The trainer's name of a tensor that the engine casts → digest of the same rows after the same cast."""
    held: dict[str, str] = {}
    """``rank/name`` → digest of what the engine holds afterwards. A part of a fused tensor has the trainer's name."""
    trained: dict[str, str] | None = None
    """Name of a tensor that was sent with other values than the trainer's parameter has → digest of the parameter. Empty where all
    were sent as they are; None where the watch does not know the parameters, or a rank has but a shard of them."""
    frozen: list[str] = []
    """Names that were sent and that the trainer does not train."""
    unsent: list[str] = []
    """Names that the trainer trains, and that were not sent."""
    altered: dict[str, str] = {}
    """How a tensor differs from what it should be, in words: by its name, what was sent from the trainer's parameter; by
    ``rank/name``, what the engine holds from what was sent."""
    merged: float | None = None
    """How many times the adapter that is trained is merged into what was sent; None without one, or while it is too small."""
    written: dict[str, str] = {}
    """``rank/name`` of what the engine held otherwise before the sync than after the one before → digest before the sync."""
    missing: bool = False
    """True of no sync: the engine began rollouts of a step whose weights it was not sent."""
    identity: str | None = None
    """Identity of the set of weights that the trainer sent, as ``ckptcheck identity`` prints it for a checkpoint; None if the watch
    did not compute it."""
    held_identity: str | None = None
    """Identity of the weights that the engine holds afterwards."""
    payload: dict[str, str] = {}
    """Place in a payload that does not name the tensors that it changes, such as a delta → digest of the tensor there."""
    payload_bytes: int = 0
    unseen: list[str] = []
    """``rank/name`` of the engine's tensors that the watch could not read: they may have changed or not."""
    group: str = ""
    """The digested group of tensors, ``2/5``; "" for all tensors."""
    partial: str = ""
    """Why only a part of the weights passed the watch, "" if all did."""
    alike: bool = False
    """Whether both digests come from the same function, so that equal bytes give equal digests."""
    probe: ProbeRecord | None = None
    """The parity of both sides after the sync, None if it was not measured."""
    gap: GapRecord | None = None
    """The last gap that the job logged before this sync and after the one before; None if it logged none."""
    logged: LoggedStep | None = None
    """What else it logged of that step."""
    coverage: float | None = None
    """Share of the tensors that pass the watch which it looked at, in this sync or one of the last before; None if none passed."""
    odd: dict[str, str] = {}
    """Name of a tensor that was sent with values that are wrong by themselves → how: ``NaN``, ``infinite``, ``all zero``,
    ``multiplied by 0.5`` (against the sync before)."""
    suspects: list[str] = []
    """What lets the logprobs of equal weights differ, as the adapter of the framework saw it at this sync: ``the engine kept its
    prefix cache``. Only a gap makes it a fault."""

    def __post_init__(self) -> None:
        """Keep a loss that JSON has no number for."""
        if self.loss is not None and not math.isfinite(self.loss):
            self.loss, self.not_finite = None, True

    @property
    def is_merged_wrong(self) -> bool:
        """Whether an adapter is not merged once into what was sent: rounding in bfloat16 leaves less of a difference."""
        return self.merged is not None and not 0.8 < self.merged < 1.25

    @property
    def has_nan(self) -> bool:
        """Whether a tensor is NaN that was sent, or that the engine holds."""
        return "NaN" in self.odd.values() or any(text.startswith("NaN") for text in self.altered.values())

    @property
    def is_empty(self) -> bool:
        """Whether the sync sent nothing, although the trainer trains something."""
        return bool(self.ok and self.unsent and not self.sent)

    @property
    def is_digested(self) -> bool:
        """Whether the weights of either side were digested."""
        return bool(self.sent or self.held)


class Record:
    """A file to which syncs are appended. keep: how many of the last ones stay; CkptcheckError for less than 2."""

    def __init__(self, path: Path | str, *, keep: int = KEEP) -> None:
        if keep < 2:
            raise CkptcheckError("a record has to keep at least 2 syncs, or there is nothing to compare")
        self.path, self.keep = Path(path), keep
        self._syncs: int | None = None

    def check_writable(self) -> None:
        """Raise CkptcheckError, as `append` does, if a sync could not be appended."""
        try:
            if self.path.exists():
                os.close(os.open(self.path, os.O_RDWR | os.O_APPEND))
                self._check_is_record()
            elif not os.access(self.path.parent, os.W_OK | os.X_OK):
                raise OSError(f"no file can be created in {self.path.parent}")
        except OSError as error:
            raise self._unwritable(error) from error

    def append(self, sync: SyncRecord) -> None:
        """Append one sync, with `time` and `run` filled in.

        Raises CkptcheckError if the file cannot be written, or if it holds something else than syncs.
        """
        sync.run = sync.run or run_id()
        sync.time = sync.time or utc_now()
        line = msgspec.json.encode(sync) + b"\n"
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            with os.fdopen(handle, "r+b", buffering=0) as file, _lock(file.fileno()):
                size = file.seek(0, os.SEEK_END)
                if self._syncs is None and size:
                    self._check_is_record()
                # the last line was cut off
                if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                    line = b"\n" + line
                _write_whole(file, line, size)
        except OSError as error:
            raise self._unwritable(error) from error
        self._bound()

    def _check_is_record(self) -> None:
        """Raise CkptcheckError unless the first line is a sync, or one that was cut off. An empty file is allowed."""
        first, second = itertools.islice(itertools.chain((line for _, line in read_lines(self.path)), (b"", b"")), 2)
        if not OURS.match(first) and not (BEGIN.startswith(first) and (OURS.match(second) or not second)):
            raise OutputError(
                f"{self.path} is not a record of syncs, and is left as it is",
                "name another file, or one that does not exist",
            )

    def _unwritable(self, error: OSError) -> CkptcheckError:
        return OutputError(f"cannot write the record {self.path}: {error.strerror or error}")

    def _bound(self) -> None:
        """Rewrite the file with the last syncs once it has twice as many. Lines that are not syncs stay in place."""
        if self._syncs is None:
            self._syncs = sum(1 for _, line in read_lines(self.path) if OURS.match(line))
        else:
            self._syncs += 1
        if self._syncs >= 2 * self.keep:
            lines = [line for _, line in read_lines(self.path)]
            places = [place for place, line in enumerate(lines) if OURS.match(line)]
            dropped = set(places[: -self.keep])
            remaining = [line for place, line in enumerate(lines) if place not in dropped]
            replace_file(self.path, b"\n".join(remaining) + b"\n")
            self._syncs = len(places) - len(dropped)


def _write_whole(file: io.FileIO, line: bytes, size: int) -> None:
    """Append a line to an unbuffered file of so many bytes, or nothing. Raises OSError."""
    rest = memoryview(line)
    try:
        # a disk that fills up takes what fits, and tells so only the next time
        while rest:
            rest = rest[file.write(rest) :]
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(size)
        raise


def utc_now() -> str:
    """Return the time as a record writes it: UTC, ISO 8601, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def read_record(path: Path | str) -> tuple[tuple[SyncRecord, ...], dict[int, str]]:
    """Return the syncs of a file, and its damaged lines (number → why) without a last line that was cut off.

    Raises CkptcheckError if the file cannot be read, and if no line of it is a sync.
    """
    path = Path(path)
    syncs: list[SyncRecord] = []
    damaged: dict[int, str] = {}
    decoder = msgspec.json.Decoder(SyncRecord)
    try:
        is_cut_off = path.stat().st_size > 0 and not _ends_with_newline(path)
        for number, line in read_lines(path):
            try:
                sync = _decode(decoder, line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                damaged[number] = str(error)
                continue
            # any JSON object without contradicting fields decodes as an empty sync
            if sync.run:
                syncs.append(sync)
            else:
                damaged[number] = "it does not name the process that recorded it"
    except OSError as error:
        raise CkptcheckError(f"cannot read the record {path}: {error.strerror or error}") from error
    if is_cut_off and damaged and max(damaged) == number:
        del damaged[number]
    if not syncs:
        raise CkptcheckError(
            f"{path} is not a record of syncs" if damaged else f"{path} holds no sync",
            "ckptcheck refit --record writes one, and so does ckptcheck.watch",
        )
    return tuple(syncs), damaged


def find_earlier(path: Path, sync: SyncRecord) -> list[SyncRecord]:
    """Return the first sync of the last other process that synced this step, and its sync of the step; [] for none.

    It decodes no other line, since a record may be large. Raises OSError, and what `_decode` raises.
    """
    decoder = msgspec.json.Decoder(SyncRecord)
    first: dict[str, SyncRecord] = {}
    found: SyncRecord | None = None
    for _, line in read_lines(path) if sync.step is not None else ():
        match = RUN_AND_STEP.search(line[:200])
        if match is None or match[1].decode() == sync.run:
            continue
        if match[1].decode() not in first:
            first[match[1].decode()] = _decode(decoder, line)
        if int(match[2]) == sync.step:
            found = _decode(decoder, line)
    return [] if found is None else [each for each in (first[found.run],) if each.step != found.step] + [found]


def _decode(decoder: msgspec.json.Decoder[SyncRecord], line: bytes) -> SyncRecord:
    """Return the sync of a line. Python's own writer of JSON leaves NaN and Infinity as they are, which JSON has no word for.

    Raises msgspec.MsgspecError, UnicodeDecodeError and RecursionError.
    """
    try:
        return decoder.decode(line)
    except msgspec.DecodeError:
        if b"NaN" not in line and b"Infinity" not in line:
            raise
        with contextlib.suppress(json.JSONDecodeError):
            return msgspec.convert(json.loads(line), SyncRecord)
        raise


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of every line that is not blank. A line that is too long comes cut, so it counts as damaged.

    Raises OSError, also for a pipe, a device, and a line without an end in `MOST_PIECES` pieces.
    """
    with open_regular_stream(path) as file:
        number = 0
        while line := file.readline(LONGEST):
            number += 1
            if not line.endswith(b"\n") and len(line) == LONGEST:
                for _ in range(MOST_PIECES):
                    if not (rest := file.readline(PIECE)) or rest.endswith(b"\n"):
                        break
                else:  # a sparse file costs its maker nothing
                    raise OSError(errno.EFBIG, f"line {number} has more than {LONGEST + MOST_PIECES * PIECE:,} bytes")
            if line.strip():
                yield number, line.rstrip(b"\n")


def _ends_with_newline(path: Path) -> bool:
    with open_regular_stream(path) as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


@contextlib.contextmanager
def _lock(handle: int) -> Iterator[None]:
    """Lock the file against other writers, if the system has locks. Raises OSError if another process keeps it locked."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    end = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in NO_LOCKS:
                break
            if error.errno not in (errno.EWOULDBLOCK, errno.EINTR):
                raise
            if time.monotonic() > end:
                raise OSError(errno.EWOULDBLOCK, "another process keeps it locked") from None
            time.sleep(0.01)
        else:
            break
    # closing the file ends the lock
    yield
