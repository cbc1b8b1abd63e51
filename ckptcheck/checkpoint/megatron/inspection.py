"""Opens every archive of a checkpoint and locates the bytes of each chunk, so that values can be read in place."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.components import Components
from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.header import Shard
from ckptcheck.checkpoint.megatron.optimizer_state import StateStats, is_optimizer_state
from ckptcheck.checkpoint.megatron.structure import OUTPUT, positive_argument
from ckptcheck.checkpoint.megatron.tensor import Chunk, GlobalTensor, Item
from ckptcheck.checkpoint.megatron.tensor_reader import ChunkLocation, locate_chunk
from ckptcheck.checkpoint.megatron.weights import is_weight
from ckptcheck.checkpoint.source import Source, describe_version, find_nodes
from ckptcheck.checkpoint.tensor import Tensor
from ckptcheck.checkpoint.torch_archive import Archive, UnreadableArchive
from ckptcheck.errors import EvidenceError
from ckptcheck.runners.runner import Local

if TYPE_CHECKING:
    from ckptcheck.checkpoint.megatron.megatron import Megatron

STEP = 1 << 24
REMOTE_RECORDS = 6
"""Records that are read at a time from a remote source; each holds STEP bytes in memory."""


@dataclass(frozen=True)
class UnreadableChunk:
    """A chunk or object that cannot be read."""

    key: str
    """The key it belongs to."""
    file: str
    reason: str
    """Why, as the end of a sentence."""


@dataclass(frozen=True)
class ArchiveRecordInfo:
    """A record of an archive."""

    key: str
    """The key of the tensor or object that the archive holds."""
    file: str
    begin: int
    """Offset in the file, in bytes."""
    length: int
    """Length in bytes."""
    crc: int | None
    """CRC-32 according to the archive's directory; None without checksums."""
    data: bool
    """Whether it holds the data of a storage."""
    is_corrupt: bool | None = None
    """Whether its bytes differ from its checksum; None if they were not read yet."""

    @property
    def holds_state(self) -> bool:
        """Whether it holds the numbers of an optimizer's state."""
        return self.data and is_optimizer_state(self.key)


@dataclass
class Inspection:
    """The result of opening every archive."""

    located: dict[str, list[tuple[Chunk, ChunkLocation]]] = field(default_factory=dict)
    """Weight → its chunks and their locations."""
    faults: list[UnreadableChunk] = field(default_factory=list)
    """Chunks and objects that cannot be read."""
    records: list[ArchiveRecordInfo] = field(default_factory=list)
    """Records to read whole: records with a checksum, and an optimizer's records."""


def inspect(run: Megatron) -> Inspection:
    """Open every archive once. An archive that cannot be opened is a fault; other rules report missing and short files."""
    inspection = Inspection()
    opened: dict[Item, bool] = {}
    for name, tensor in run.weights.items():
        for chunk in tensor.chunks:
            if chunk.item is None or run.is_beyond(chunk.item) or chunk.item.transformed:
                continue
            archive = _opened(run, chunk.item, tensor.key, inspection, opened)
            if archive is None:
                continue
            try:
                location = locate_chunk(run.source, chunk, tensor.dtype, run.item_folder, archive)
                inspection.located.setdefault(name, []).append((chunk, location))
            except (UnreadableArchive, OSError) as error:
                inspection.faults.append(UnreadableChunk(tensor.key, run.path_of(chunk.item), str(error)))
    others: list[tuple[str, Item]] = [
        (tensor.key, chunk.item) for tensor in run.tensors.values() for chunk in tensor.chunks if chunk.item is not None
    ]
    others += [(key, item) for key, item in (run.contents.objects if run.contents else {}).items() if item is not None]
    for key, item in others:
        if item not in opened and not run.is_beyond(item) and not item.transformed:
            _opened(run, item, key, inspection, opened)
    return inspection


def _opened(run: Megatron, item: Item, key: str, inspection: Inspection, opened: dict[Item, bool]) -> Archive | None:
    """Open an archive; the first time, note its records, or why it cannot be opened."""
    if opened.get(item) is False:
        return None
    try:
        archive = run.archive(item)
    except (UnreadableArchive, OSError) as error:
        opened[item] = False
        inspection.faults.append(UnreadableChunk(key, run.path_of(item), str(error)))
        return None
    if item not in opened and (archive.has_checksums or not is_weight(key)):
        file = run.path_of(item)
        inspection.records += [
            ArchiveRecordInfo(
                run.keys_of_records.get((item.file, name), key),
                file,
                item.begin + record.begin,
                record.length,
                record.crc if archive.has_checksums else None,
                name.split("/")[-2:-1] == ["data"],
                record.is_corrupt if archive.has_checksums else None,
            )
            for name, record in archive.records.items()
        ]
    opened[item] = True
    return archive


class RecordResult(msgspec.Struct):
    """The outcome of reading a record."""

    corrupt: bool = False
    """Whether its checksum differs from the one in its directory."""
    state: StateStats | None = None
    """Statistics of the state of an optimizer; None for other records."""
    reason: str = ""
    """Why it could not be read, or ""."""


@dataclass(frozen=True)
class RecordScan:
    """Reads a record for its checksum and for the state of an optimizer; `runners.runner.Work`."""

    source: Source
    dtypes: Mapping[str, str]
    """Key of a tensor → its dtype."""
    files: tuple[str, ...]
    result_type = RecordResult

    @property
    def name(self) -> str:
        """The name of this work, with its target."""
        return f"records of {self.source.target}"

    @property
    def remote_jobs(self) -> int:
        """How many records are read at a time from a remote source."""
        return 0 if self.source.local is not None else REMOTE_RECORDS

    def compute(self, unit: ArchiveRecordInfo) -> RecordResult:
        """Read a record block by block."""
        state = StateStats() if unit.holds_state else None
        dtype = self.dtypes.get(unit.key, "") if state is not None else ""
        checksum, at = 0, 0
        while at < unit.length:
            try:
                raw = self.source.read(unit.file, unit.begin + at, min(STEP, unit.length - at))
            except OSError as error:
                return RecordResult(reason=error.strerror or str(error))
            if not raw:
                # The file shrank: the value pass reports that.
                return RecordResult()
            checksum = zlib.crc32(raw, checksum) if unit.crc is not None else 0
            if state is not None:
                state = state.with_block(raw, dtype)
            at += len(raw)
        return RecordResult(unit.crc is not None and checksum != unit.crc, state)

    def describe(self, unit: ArchiveRecordInfo) -> str:
        """Say which record it is."""
        return repr(unit)

    def weigh(self, unit: ArchiveRecordInfo) -> int:
        """Return the bytes of a record."""
        return unit.length

    def find_nodes(self, unit: ArchiveRecordInfo) -> frozenset[str]:
        """Return the nodes on whose disks the files lie."""
        return find_nodes(self.source, unit.file)

    def list_objects(self) -> dict[str, str]:
        """Map each file to a text that changes when it is replaced."""
        return {name: describe_version(self.source, name) for name in self.files}

    def fits(self, unit: ArchiveRecordInfo, result: RecordResult) -> bool:
        """Whether a result fits its record: only an optimizer's state has statistics."""
        return result.state is None or unit.holds_state

    def is_whole(self, result: RecordResult) -> bool:
        """Whether the record could be read."""
        return not result.reason


def read_record_stats(run: Megatron, records: list[ArchiveRecordInfo]) -> list[tuple[ArchiveRecordInfo, RecordResult]]:
    """Read every record once, for its checksum and for the state of an optimizer. Raises EvidenceError if one cannot be read.

    A record whose checksum was compared at opening its archive is read again only if it holds the state of an optimizer.
    """
    dtypes = {record.key: run.tensors[record.key].dtype for record in records if record.key in run.tensors}
    work = RecordScan(run.source, dtypes, tuple(dict.fromkeys(record.file for record in records)))
    unread = [record for record in records if record.is_corrupt is None or record.holds_state]
    found = {record: RecordResult(bool(record.is_corrupt)) for record in records}
    for record in unread:
        del found[record]
    # A runner may compute only some of them.
    for record, result in (run.value_reader.runner or Local()).run(work, unread):
        if result.reason:
            raise EvidenceError(f"could not read {record.file}: {result.reason}")
        found[record] = result
    return [(record, found[record]) for record in records if record in found]


class MegatronWeights(Checkpoint):
    """The weights of a Megatron checkpoint for the rules about values: a tensor for each chunk, at its place in the files.

    The name of a chunk that is only part of its weight contains its slice: ``decoder.layers.0.mlp.linear_fc1[24:48].weight``.
    """

    kind = "values"
    tensor_suffixes = (".distcp", ".pt")

    def __init__(self, run: Megatron) -> None:
        super().__init__(run.source, options=run.options, value_reader=run.value_reader, jobs=run.jobs)
        self._run = run

    @cached_property
    def padding(self) -> int:
        """The most rows at the end of the vocabulary that may be padding, by the saved arguments.

        Megatron pads to a multiple of `make_vocab_size_divisible_by` times the tensor-parallel ranks, by less than that.
        """
        args = self._run.args
        multiple = positive_argument(args, "make_vocab_size_divisible_by")
        ranks = positive_argument(args, "tensor_model_parallel_size") or 1
        rows = multiple * ranks - 1 if multiple else 1 << 20
        padded, own = positive_argument(args, "padded_vocab_size"), positive_argument(args, "vocab_size")
        return min(rows, padded - own) if padded and own and own <= padded else rows

    def view_for(self, kind: str) -> MegatronWeights | None:
        """Return the weights for rules about values, None for others."""
        return self if kind == self.kind else None

    @cached_property
    def shards(self) -> dict[str, Shard]:
        """File → the chunks in it, with their offsets in the file. Raises Skip if the values are not read."""
        tensors_by_file: dict[str, dict[str, Tensor]] = {}
        for name, chunks in self._run.inspection.located.items():
            whole = self._run.weights[name]
            for chunk, place in chunks:
                entry = Tensor(place.dtype, chunk.sizes, (place.begin, place.begin + place.nbytes))
                tensors_by_file.setdefault(place.name, {})[chunk_name(name, whole, chunk)] = entry
        return {
            file: Shard(file, self.files[file].size, tensors, readable=True)
            for file, tensors in tensors_by_file.items()
        }

    @cached_property
    def model_files(self) -> tuple[str, ...]:
        """The files that hold weights."""
        return tuple(self.shards)

    @cached_property
    def vocabulary_tensors(self) -> dict[str, tuple[str, ...]]:
        """Embedding and head → the chunks with their rows, in order; without matrices whose rows are split or incomplete."""
        weights = self._run.weights
        layout = self._run.layout
        shapes = {
            name: Tensor(weights[name].dtype, weights[name].shape, (0, weights[name].nbytes)) for name in layout.outside
        }
        anatomy = Components(None, layout, shapes)
        vocabularies = {}
        for name in dict.fromkeys((anatomy.embedding, anatomy.lm_head, OUTPUT if OUTPUT in weights else None)):
            if name is None or not shapes[name].has_rows or shapes[name].shape[0] == 1:  # a critic's head has one
                continue
            parts = {
                chunk.offsets[0]: chunk
                for chunk, _ in self._run.inspection.located.get(name, ())
                if 0 not in chunk.sizes
            }
            rows = 0
            while rows in parts and parts[rows].sizes[1:] == weights[name].shape[1:]:
                rows += parts[rows].sizes[0]
            if rows == weights[name].shape[0]:
                vocabularies[name] = tuple(
                    chunk_name(name, weights[name], parts[at]) for at in sorted(parts) if at < rows
                )
        return vocabularies

    @cached_property
    def weight_parts(self) -> dict[str, tuple[str, ...]]:
        """Weight → its chunks, for weights that have several."""
        return {
            name: tuple(chunk_name(name, self._run.weights[name], chunk) for chunk, _ in chunks)
            for name, chunks in self._run.inspection.located.items()
            if len(chunks) > 1
        }

    @property
    def args(self) -> Mapping[str, Any]:
        """The arguments of the training script, plain values only."""
        return self._run.args

    @cached_property
    def config(self) -> Config | None:
        """None: Megatron writes no config.json."""
        return None

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The saved arguments of the trainer; empty if it saved none."""
        return self._run.args

    @property
    def unread(self) -> Mapping[str, str]:
        """File → why its values could not be read."""
        return self._parts.unread

    @property
    def is_adapter(self) -> bool:
        """Never True."""
        return False


def chunk_name(name: str, whole: GlobalTensor, chunk: Chunk) -> str:
    """Return the name of a chunk: its weight's name, with the slice if the chunk is only a part."""
    if chunk.sizes == whole.shape:
        return name
    box = ", ".join(
        ":" if begin == 0 and extent == size else f"{begin}:{begin + extent}"
        for begin, extent, size in zip(chunk.offsets, chunk.sizes, whole.shape, strict=True)
    )
    while box.endswith(", :"):
        box = box[:-3]
    head, dot, last = name.rpartition(".")
    return f"{head}[{box}]{dot}{last}"
