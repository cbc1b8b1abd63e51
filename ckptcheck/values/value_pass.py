"""The value pass: scans the files piece by piece and joins the statistics of the pieces."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from operator import itemgetter
from pathlib import Path

import msgspec
import numpy as np

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.source import Source, describe_version, find_nodes, list_rewritten
from ckptcheck.checkpoint.tensor import Tensor
from ckptcheck.checkpoint.value_reader import HasValues
from ckptcheck.linter.rule import Skip
from ckptcheck.runners.runner import Local, Runner
from ckptcheck.values.channel_sample import join_sums
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.first_looks import judge_joined
from ckptcheck.values.kept_places import Places, join_places
from ckptcheck.values.scan_plan import BATCHES_PER_WORKER, MAX_BATCH_BYTES, ScanPlan, plan_scan
from ckptcheck.values.stats import Chunks, ChunkStats, ValueStats, join_chunks, merge_runs
from ckptcheck.values.worker import Batch, Piece, fits_piece, scan_pieces
from ckptcheck.values.worker_pool import WorkerPool

READ_BYTES = 1 << 23
"""Bytes that are read at a time if files are not mapped."""
MIN_BYTES_FOR_WORKERS = 1 << 28
"""With this many bytes, starting processes (0.2 s) is faster than reading in this one."""
REMOTE_READS = 16
"""Reads at a time if the files are not on this machine: each waits for the network, and holds READ_BYTES."""
NETWORK_FILE_SYSTEMS = frozenset(
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
"""File systems on which a mapped file may stall or kill the process: another machine may truncate it."""

Progress = Callable[[int, int], None]


def run_value_pass(
    source: Source,
    plan: ScanPlan,
    *,
    jobs: int | None = 1,
    pool: WorkerPool | None = None,
    runner: Runner | None = None,
    progress: Progress | None = None,
) -> ValueStats:
    """Scan every value that the plan lists.

    pool: processes that map the files, and may have begun. They are killed afterwards; the caller closes the pool.
    runner: runs the batches in place of the pool; without either, `jobs` threads of this process read the files.
    progress: called with the bytes scanned so far and the bytes in all.

    A bad disk or a file that changes raises nothing: `ValueStats.shrunk` and `ValueStats.unread` name it.
    """
    tensors = [(shard, name) for file, shard in plan.shards.items() for name in plan.tensors[file]]
    values = ValueStats()
    pieces_by_tensor: list[Chunks] = [[] for _ in tensors]
    runs: dict[str, list[tuple[int, int]]] = {}
    done = 0
    results = (
        _scan_mapped(pool, source, plan, values)
        if pool is not None
        else _scan_read(source, plan, plan.batches, runner or Local(jobs), values)
    )
    for batch, chunks in results:
        done += batch.nbytes
        if progress is not None:
            progress(done, plan.nbytes)
        data_start = plan.shards[batch.shard].data_start
        for piece, chunk in zip(batch.pieces, chunks, strict=True):
            pieces_by_tensor[piece.tensor].append((piece.offset, chunk))
            if chunk.zero_runs:
                start = piece.begin - data_start
                runs.setdefault(batch.shard, []).extend((start + begin, start + end) for begin, end in chunk.zero_runs)
    for name in list_rewritten(source, plan.shards):  # since the listing, when the headers were read
        if name not in values.shrunk and name not in values.unread:
            values.unread[name] = "it was replaced or written to while it was being read"
    values.zero_runs.update({name: merged for name, pieces in runs.items() if (merged := merge_runs(pieces))})
    whole = {name for name, shard in plan.shards.items() if not shard.unfit}
    values.complete_shards.update(whole - values.shrunk.keys() - values.unread.keys())
    for (shard, name), parts in zip(tensors, pieces_by_tensor, strict=True):
        if shard.name in values.shrunk or shard.name in values.unread:
            continue
        tensor = shard.tensors[name]
        parts.sort(key=itemgetter(0))
        values.tensors[name] = join_chunks(name, shard.name, tensor.dtype, tensor.shape, parts)
        chunks = [chunk for _, chunk in parts]
        _join_samples(values, name, tensor, chunks, has_rows=name in plan.rows)
        if (places := plan.kept.get(name)) is not None:
            values.kept[name] = join_places(places, [chunk.kept for chunk in chunks])
    return values


def _join_samples(values: ValueStats, name: str, tensor: Tensor, chunks: list[ChunkStats], *, has_rows: bool) -> None:
    """Add the rows, samples and looks of a tensor, where its pieces were asked for them."""
    if len(chunks) == 1:
        (chunk,) = chunks
        if not (chunk.row_squares or has_rows or chunk.elements):  # most of many tensors
            if len(chunk.looks) == 1:
                values.looks[name] = chunk.looks[0]
            return
    if any(chunk.row_squares for chunk in chunks):
        sums = [(chunk.row_squares, chunk.column_squares) for chunk in chunks]
        if (sample := join_sums(sums, tensor.shape)) is not None:
            values.samples[name] = sample
    if has_rows:
        values.row_max[name] = b"".join(chunk.row_max for chunk in chunks)
        values.row_fingerprints[name] = b"".join(chunk.row_fingerprints for chunk in chunks)
    if any(chunk.elements for chunk in chunks):
        values.element_samples[name] = tensor.dtype, b"".join(chunk.elements for chunk in chunks)
    if len(chunks) == 1 and len(chunks[0].looks) == 1:
        values.looks[name] = chunks[0].looks[0]
    elif len(chunks) > 1 and (looks := b"".join(chunk.looks for chunk in chunks)):
        rows = tensor.shape[0] if len(tensor.shape) == 2 else 1
        values.looks[name] = judge_joined((rows, tensor.nbytes // rows), looks, FORMATS[tensor.dtype].bits // 8)


def _scan_mapped(
    pool: WorkerPool, source: Source, plan: ScanPlan, values: ValueStats
) -> Iterator[tuple[Batch, list[ChunkStats]]]:
    """Let the workers of a pool map and scan the files; this process reads a batch over which a worker died."""
    lost_shards: set[str] = set()
    try:
        pool.submit(plan.batches)
        for batch, stats in pool.iter_results(lost_shards):
            if stats is not None:
                yield batch, stats.chunks
            elif batch.shard not in lost_shards:
                yield from _scan_read(source, plan, [batch], Local(1), values)
                # A worker may also die of too little memory: the rest of a sound file is still to be scanned.
                lost_shards.update(values.shrunk, values.unread)
    finally:
        pool.kill()


def _scan_read(
    source: Source, plan: ScanPlan, batches: list[Batch], runner: Runner, values: ValueStats
) -> Iterator[tuple[Batch, list[ChunkStats]]]:
    """Let a runner read and scan the files."""
    lost: set[str] = set()
    for batch, result in runner.run(BatchScan(source, tuple(plan.shards), lost), batches):
        if result.reason:
            lost.add(batch.shard)
            (values.shrunk if result.has_shrunk else values.unread).setdefault(batch.shard, result.reason)
        elif batch.shard not in lost:
            yield batch, result.chunks


class BatchResult(msgspec.Struct):
    """The result of scanning a batch."""

    chunks: list[ChunkStats] = []
    """One for each piece; empty if the file could not be read."""
    reason: str = ""
    """Why the file could not be read; "" if it could."""
    has_shrunk: bool = False
    """Whether the file has fewer bytes than it had, or is gone."""


class BatchScan(msgspec.Struct, frozen=True):
    """Scans the values of a batch; `runners.runner.Work`."""

    source: Source
    shards: tuple[str, ...]
    lost: Set[str] = frozenset()
    """Shards that need no more reading. The caller may add to them between results."""
    result_type = BatchResult

    @property
    def name(self) -> str:
        """The computation and its target, in words."""
        return f"values of {self.source.target}"

    @property
    def remote_jobs(self) -> int:
        """How many batches are read at a time if they are not on this machine."""
        return 0 if self.source.local is not None else REMOTE_READS

    def compute(self, unit: Batch) -> BatchResult:
        """Read and scan the pieces of a batch."""
        if unit.shard in self.lost:
            return BatchResult(reason="an earlier part of it could not be read")
        chunks = []
        read = getattr(self.source, "view", self.source.read)
        try:
            for pieces in _group_adjacent(unit.pieces):
                begin, end = pieces[0].begin, pieces[-1].begin + pieces[-1].nbytes
                raw = read(unit.shard, begin, end - begin)
                if len(raw) < end - begin:
                    return BatchResult(reason="the file shrank while it was being read", has_shrunk=True)
                chunks += scan_pieces(np.frombuffer(raw, np.uint8), begin, pieces)
        except FileNotFoundError:
            return BatchResult(reason="the file disappeared while it was being read", has_shrunk=True)
        except OSError as error:
            return BatchResult(reason=error.strerror or str(error))
        return BatchResult(chunks)

    def describe(self, unit: Batch) -> str:
        """Name the file of the batch and its bytes."""
        return repr((unit.shard, unit.size, unit.pieces))

    def weigh(self, unit: Batch) -> int:
        """Return the bytes of a batch."""
        return unit.nbytes

    def find_nodes(self, unit: Batch) -> frozenset[str]:
        """Return the nodes on whose disks the files lie."""
        return find_nodes(self.source, unit.shard)

    def list_objects(self) -> dict[str, str]:
        """Map each file to a state that changes when somebody replaces the file."""
        return {name: describe_version(self.source, name) for name in self.shards}

    def fits(self, unit: Batch, result: BatchResult) -> bool:
        """Whether it has a reason, or possible statistics for each piece."""
        if result.reason:
            return True
        return len(result.chunks) == len(unit.pieces) and all(map(fits_piece, result.chunks, unit.pieces))

    def is_whole(self, result: BatchResult) -> bool:
        """Whether the batch could be read."""
        return not result.reason


def _group_adjacent(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Yield the pieces of a batch in groups that follow each other in the file, which one request reads."""
    group: list[Piece] = []
    for piece in pieces:
        if group and piece.begin != group[-1].begin + group[-1].nbytes:
            yield group
            group = []
        group.append(piece)
    if group:
        yield group


def can_map(source: Source) -> bool:
    """Whether the files lie on a disk of this machine."""
    return source.local is not None and not _is_remote(source.local)


def _is_remote(folder: Path) -> bool:
    """Whether a folder lies on a network file system; False on systems other than Linux, which do not tell."""
    try:
        device = os.stat(folder).st_dev
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    device_number = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == device_number:
            return rest.split()[0].partition(".")[0] in NETWORK_FILE_SYSTEMS
    return False


def _row_sizes(ckpt: HasValues) -> dict[str, int]:
    """Return name of an embedding or head, or of a part of one → bytes of a row."""
    sizes = {}
    for name in (part for parts in ckpt.vocabulary_tensors.values() for part in parts):
        if ckpt.tensors[name].has_rows:
            sizes[name] = ckpt.tensors[name].nbytes // ckpt.tensors[name].shape[0]
    return sizes


class ValuePass:
    """Reads the values of one checkpoint when a rule first asks for them: a `checkpoint.value_reader.ValueReader`."""

    def __init__(
        self,
        *,
        jobs: int | None = None,
        use_mmap: bool = True,
        read_remote: bool = True,
        takes_samples: bool = False,
        runner: Runner | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Choose how to read.

        Args:
            jobs: worker processes or threads; None for the number of cores.
            use_mmap: map large local files into memory, in worker processes; False to read them in threads.
            takes_samples: take a sample of every tensor on the way, for `ValueStats.sketches`.
            read_remote: read the values of checkpoints on the Hub and in object stores too.
            runner: runs the batches; None: this process and workers of it.
            progress: called with the bytes scanned so far and the bytes in all.
        """
        self._chosen_jobs = jobs
        self._jobs = jobs or os.cpu_count() or 1
        self._use_mmap = use_mmap
        self._read_remote = read_remote
        self._takes_samples = takes_samples
        self.runner = runner
        self._progress = progress
        self._pool: WorkerPool | None = None
        self._submitted: ScanPlan | None = None

    def unavailable_reason(self, source: Source) -> str | None:
        """Return why the values of this source are not read, as the reason of a skip; None if they are read."""
        if source.local is None and not getattr(source, "is_nearby", False) and not self._read_remote:
            place = "in an object store" if source.allows_sampling else "on the Hub"
            return f"values {place} are read only with --values"
        return None

    def start(self, ckpt: HasValues) -> None:
        """Start the worker processes now, so that they scan while the rules on headers run. The caller calls `close`.

        Does nothing for a checkpoint that no worker processes read.
        """
        if not self._is_mapped(ckpt) or self.unavailable_reason(ckpt.source) is not None:
            return
        # The pool forks before the headers are read, while this process is small.
        self._pool = WorkerPool(self._jobs)
        self._submitted = self._plan(ckpt)
        self._pool.submit(self._submitted.batches)

    def read(self, ckpt: HasValues) -> ValueStats:
        """Read all values and return their statistics. Raises Skip if they are not read."""
        if (reason := self.unavailable_reason(ckpt.source)) is not None:
            raise Skip(reason)
        pool = self._pool or (WorkerPool(self._jobs) if self._is_mapped(ckpt) else None)
        plan = self._submitted or self._plan(ckpt)
        try:
            return run_value_pass(
                ckpt.source,
                plan,
                jobs=self._chosen_jobs,
                pool=pool,
                runner=self.runner,
                progress=self._progress,
            )
        finally:
            if pool is not None and pool is not self._pool:
                pool.close()

    def close(self) -> None:
        """End the worker processes that `start` started."""
        if self._pool is not None:
            self._pool.close()

    def _is_mapped(self, ckpt: HasValues) -> bool:
        """Whether worker processes map the files into memory."""
        return (
            self.runner is None
            and self._use_mmap
            and _count_tensor_bytes(ckpt) >= MIN_BYTES_FOR_WORKERS
            and can_map(ckpt.source)
        )

    def _plan(self, ckpt: HasValues) -> ScanPlan:
        most = READ_BYTES
        if self._is_mapped(ckpt):
            share = _count_tensor_bytes(ckpt) // (BATCHES_PER_WORKER * self._jobs)
            most = min(MAX_BATCH_BYTES, max(READ_BYTES, share))
        rows = _row_sizes(ckpt)
        return plan_scan(
            ckpt.source,
            ckpt.shards,
            ckpt.tensor_to_file,
            rows,
            most,
            takes_samples=self._takes_samples,
            kept=_list_first_reads(ckpt),
        )


def _list_first_reads(ckpt: HasValues) -> Mapping[str, Places]:
    """Return the places that detectors read first, where each read is a request; {} on a disk."""
    if ckpt.source.local is not None or not isinstance(ckpt, Checkpoint) or not ckpt.can_sample:
        return {}
    from ckptcheck.values.detectors.first_reads import list_first_reads

    return list_first_reads(ckpt)


def _count_tensor_bytes(ckpt: HasValues) -> int:
    """Return the size of all files that hold tensors."""
    return sum(file.size for name, file in ckpt.files.items() if name.endswith(ckpt.tensor_suffixes))
