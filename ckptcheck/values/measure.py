"""The value pass: cuts the files into pieces, has them looked at, and joins what they showed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.header import Shard
from ckptcheck.checkpoint.source import Source
from ckptcheck.values.crew import Crew
from ckptcheck.values.device import DeviceLook
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.look import Seen, look
from ckptcheck.values.stats import Gathering, Values, joined
from ckptcheck.values.worker import Batch, Look, Piece, look_at

BATCH = 1 << 26
"""Bytes given to a worker at a time."""
PIECES = 400
"""The most pieces in a batch: two batches have to fit into a pipe, 64 KiB."""
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
    shards: Mapping[str, Shard],
    *,
    jobs: int = 1,
    crew: Crew | None = None,
    look: Look = look,
    rows: Mapping[str, int] = {},
    progress: Progress | None = None,
) -> Values:
    """Look at every value of these shards. progress: called with bytes done and in all.

    crew: processes that map the files; it is closed afterwards. Without one they are read here, by `jobs` threads, and
    looked at with `look`. rows: matrix → bytes of a row, of those whose rows are to be glanced at.

    Raises nothing for a bad disk or a file that changes: `Values.shrunk` and `Values.unread` say so.
    """
    whole = {name: shard for name, shard in shards.items() if shard.readable and _tiled(shard)}
    tensors = [(shard, name) for shard in whole.values() for name in shard.tensors]
    total = sum(tensor.nbytes for shard in whole.values() for tensor in shard.tensors.values())
    batches = list(_batches(source, whole, rows, BATCH if crew is not None else READ))
    values, gathered = Values(), [Gathering() for _ in tensors]
    runs: dict[str, list[tuple[int, int]]] = {}
    before = {name: _identity(source, name) for name in whole}
    done = 0
    looked = _mapped(crew, source, batches, values) if crew is not None else _read(source, batches, jobs, values, look)
    for batch, seen in looked:
        done += batch.nbytes
        if progress is not None:
            progress(done, total)
        for piece, found in zip(batch.pieces, seen, strict=True):
            gathered[piece.tensor].add(found, piece.offset)
            start = piece.begin - whole[batch.shard].data_start
            runs.setdefault(batch.shard, []).extend((start + begin, start + end) for begin, end in found.zero_runs)
    for name, identity in before.items():
        if name not in values.shrunk and name not in values.unread and _identity(source, name) != identity:
            values.unread[name] = "it was replaced or written to while it was being read"
    values.zero_runs.update({name: joined(pieces) for name, pieces in runs.items()})
    values.looked_at.update(whole.keys() - values.shrunk.keys() - values.unread.keys())
    for (shard, name), whole_tensor in zip(tensors, gathered, strict=True):
        if shard.name in values.shrunk or shard.name in values.unread:
            continue
        tensor = shard.tensors[name]
        values.tensors[name] = whole_tensor.stats(name, shard.name, tensor.dtype, tensor.shape)
        if name in rows:
            values.row_peaks[name] = whole_tensor.peaks()
            values.row_marks[name] = whole_tensor.marks()
    return values


def _tiled(shard: Shard) -> bool:
    """Whether every tensor lies within the file, so that each can be read."""
    size = shard.size - shard.data_start
    return all(
        0 <= tensor.data_offsets[0] <= tensor.data_offsets[1] <= size
        and tensor.dtype in FORMATS
        and tensor.nbytes % (FORMATS[tensor.dtype].bits // 8) == 0
        for tensor in shard.tensors.values()
    )


def _batches(source: Source, shards: Mapping[str, Shard], rows: Mapping[str, int], most: int) -> Iterator[Batch]:
    """Cut the data of the shards into batches: small tensors together, large ones in pieces of whole elements."""
    number = 0
    for shard in shards.values():
        path = str(source.local / shard.name) if source.local is not None else shard.name
        pieces: list[Piece] = []
        room = most
        for name, tensor in shard.tensors.items():
            row = rows.get(name, 0)
            width = FORMATS[tensor.dtype].bits // 8
            unit = row or width
            begin, end = tensor.data_offsets
            at = begin
            while at < end:
                nbytes = min(end - at, room // unit * unit or unit)
                pieces.append(Piece(shard.data_start + at, nbytes, tensor.dtype, number, (at - begin) // width, row))
                at += nbytes
                room -= nbytes
                if room < 8 or len(pieces) == PIECES:
                    yield Batch(shard.name, path, shard.size, pieces)
                    pieces, room = [], most
            number += 1
        if pieces:
            yield Batch(shard.name, path, shard.size, pieces)


def _mapped(crew: Crew, source: Source, batches: list[Batch], values: Values) -> Iterator[tuple[Batch, list[Seen]]]:
    """Have the files mapped and looked at by processes of their own."""
    lost: set[str] = set()
    with crew:
        for batch, seen in crew.work(batches, lost):
            if seen is not None:
                yield batch, seen
            elif batch.shard not in lost:
                lost.add(batch.shard)
                yield from _read(source, [batch], 1, values, look)


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


def _identity(source: Source, name: str) -> tuple[int, ...] | None:
    """What changes when a file is replaced or written to; None where it cannot be told."""
    if source.local is None:
        return None
    try:
        status = os.stat(Path(source.local) / name)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


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
    """Return matrix → bytes of a row for those with a row per token."""
    found = {}
    for name in (ckpt.anatomy.embedding, ckpt.anatomy.head):
        if name is not None and ckpt.tensors[name].has_rows:
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

    early: start the processes that will be needed now, so that they are ready by the time the headers are read; then the
    caller has to call `ckpt.release()` when it is done.
    """
    number = jobs or os.cpu_count() or 1
    total = sum(file.size for name, file in ckpt.files.items() if name.endswith(ckpt.endings))
    on_device = DeviceLook(device) if device != "cpu" else None
    mapped = on_device is None and use_mmap and total >= WORTH_A_CREW and _may_be_mapped(ckpt.source)
    started = Crew(number) if mapped and early else None
    if started is not None:
        ckpt.release = started.close

    def read() -> Values:
        crew = started if started is not None else Crew(number) if mapped else None
        return measure(
            ckpt.source,
            ckpt.shards,
            jobs=number,
            crew=crew,
            look=on_device or look,
            rows=_rows(ckpt),
            progress=progress,
        )

    ckpt.value_reader = read
    ckpt.jobs = number
    return ckpt
