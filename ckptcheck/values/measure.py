"""The value pass: has the files looked at, piece by piece, and joins what the pieces showed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.source import Source
from ckptcheck.values.crew import Crew
from ckptcheck.values.device import DeviceLook
from ckptcheck.values.look import Seen, look
from ckptcheck.values.stats import Gathering, Values, joined
from ckptcheck.values.work import BATCH, SHARES, Work, identity_of, plan_of
from ckptcheck.values.worker import Batch, Look, look_at

READ = 1 << 23
"""Bytes read at a time where files are not mapped."""
WORTH_A_CREW = 1 << 28
"""Bytes from which starting processes (0.2 s) pays off against reading in this one."""
REMOTE = frozenset(
    (
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "lustre",
        "ceph",
        "beegfs",
        "gpfs",
        "afs",
        "9p",
        "fuse",
        "fuseblk",
        "virtiofs",
    )
)
"""File systems on which a map may stall or die: another machine may truncate the file."""

Progress = Callable[[int, int], None]


def measure(
    source: Source,
    work: Work,
    *,
    jobs: int = 1,
    crew: Crew | None = None,
    look: Look = look,
    progress: Progress | None = None,
) -> Values:
    """Look at every value. progress: called with bytes done and in all.

    crew: processes that map the files, and may have begun; they are killed afterwards, and left to be closed. Without one
    the files are read here, by `jobs` threads, and looked at with `look`.

    Raises nothing for a bad disk or a file that changes: `Values.shrunk` and `Values.unread` say so.
    """
    tensors = [(shard, name) for shard in work.shards.values() for name in shard.tensors]
    values, gathered = Values(), [Gathering() for _ in tensors]
    runs: dict[str, list[tuple[int, int]]] = {}
    done = 0
    looked = (
        _mapped(crew, source, work, values) if crew is not None else _read(source, work.batches, jobs, values, look)
    )
    for batch, seen in looked:
        done += batch.nbytes
        if progress is not None:
            progress(done, work.nbytes)
        for piece, found in zip(batch.pieces, seen, strict=True):
            gathered[piece.tensor].add(found, piece.offset)
            start = piece.begin - work.shards[batch.shard].data_start
            runs.setdefault(batch.shard, []).extend((start + begin, start + end) for begin, end in found.zero_runs)
    for name, identity in work.identities.items():
        if name not in values.shrunk and name not in values.unread and identity_of(source, name) != identity:
            values.unread[name] = "it was replaced or written to while it was being read"
    values.zero_runs.update({name: joined(pieces) for name, pieces in runs.items()})
    values.looked_at.update(work.shards.keys() - values.shrunk.keys() - values.unread.keys())
    for (shard, name), whole_tensor in zip(tensors, gathered, strict=True):
        if shard.name in values.shrunk or shard.name in values.unread:
            continue
        tensor = shard.tensors[name]
        values.tensors[name] = whole_tensor.stats(name, shard.name, tensor.dtype, tensor.shape)
        if name in work.rows:
            values.row_peaks[name] = whole_tensor.peaks()
            values.row_marks[name] = whole_tensor.marks()
    return values


def _mapped(crew: Crew, source: Source, work: Work, values: Values) -> Iterator[tuple[Batch, list[Seen]]]:
    """Have the files mapped and looked at by processes of their own."""
    lost: set[str] = set()
    try:
        crew.begin(work.batches)
        for batch, seen in crew.work(lost):
            if seen is not None:
                yield batch, seen
            elif batch.shard not in lost:
                lost.add(batch.shard)
                yield from _read(source, [batch], 1, values, look)
    finally:
        crew.dismiss()


def _read(
    source: Source, batches: list[Batch], jobs: int, values: Values, look: Look
) -> Iterator[tuple[Batch, list[Seen]]]:
    """Read the files and look at what was read, several batches at a time."""

    def read(batch: Batch) -> list[Seen] | None:
        if batch.shard in values.shrunk or batch.shard in values.unread:
            return None
        seen = []
        try:
            for piece in batch.pieces:
                raw = source.read(batch.shard, piece.begin, piece.nbytes)
                if len(raw) < piece.nbytes:
                    values.shrunk[batch.shard] = "the file shrank while it was being read"
                    return None
                seen.append(look_at(np.frombuffer(raw, np.uint8), piece, look))
        except FileNotFoundError:
            values.shrunk[batch.shard] = "the file disappeared while it was being read"
            return None
        except OSError as error:
            values.unread[batch.shard] = error.strerror or str(error)
            return None
        return seen

    pool = ThreadPoolExecutor(jobs)
    try:
        for batch, seen in zip(batches, pool.map(read, batches), strict=True):
            if seen is not None:
                yield batch, seen
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _may_be_mapped(source: Source) -> bool:
    """Whether the files lie on a disk of this machine."""
    return source.local is not None and not _is_remote(source.local)


def _is_remote(folder: Path) -> bool:
    """Whether a folder lies on a network file system, as far as the system tells (Linux)."""
    try:
        device = os.stat(folder).st_dev
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == wanted:
            return rest.split()[0].partition(".")[0] in REMOTE
    return False


def _rows(ckpt: Checkpoint) -> dict[str, int]:
    """Return matrix, or part of one → bytes of a row for those with a row per token."""
    found = {}
    for name in (part for parts in ckpt.vocabularies.values() for part in parts):
        if ckpt.tensors[name].has_rows:
            found[name] = ckpt.tensors[name].nbytes // ckpt.tensors[name].shape[0]
    return found


def attach(
    ckpt: Checkpoint,
    *,
    jobs: int | None = None,
    use_mmap: bool = True,
    device: str = "cpu",
    progress: Progress | None = None,
    early: bool = False,
) -> Checkpoint:
    """Let a checkpoint read its values when a rule first asks for them. jobs: default the number of cores.

    device: where to look at them, as torch names it; Raises CkptcheckError where torch sees no such device.

    early: start the processes now and give them something to look at while the rules on headers run; then the caller has to
    call `ckpt.release()` when it is done.
    """
    number = jobs or os.cpu_count() or 1
    total = sum(file.size for name, file in ckpt.files.items() if name.endswith(ckpt.endings))
    on_device = DeviceLook(device) if device != "cpu" else None
    mapped = on_device is None and use_mmap and total >= WORTH_A_CREW and _may_be_mapped(ckpt.source)
    started = Crew(number) if mapped and early else None  # before the headers are read: what is forked is small

    def plan() -> Work:
        most = min(BATCH, max(READ, total // (SHARES * number))) if mapped else READ
        return plan_of(ckpt.source, ckpt.shards, _rows(ckpt), most)

    begun = None
    if started is not None:
        ckpt.release = started.close
        begun = plan()
        started.begin(begun.batches)

    def read() -> Values:
        crew = started if started is not None else Crew(number) if mapped else None
        work = begun if begun is not None else plan()
        try:
            return measure(ckpt.source, work, jobs=number, crew=crew, look=on_device or look, progress=progress)
        finally:
            if crew is not None and crew is not started:
                crew.close()

    ckpt.value_reader = read
    ckpt.jobs = number
    return ckpt
