"""Opens every archive of a checkpoint and says where each chunk's bytes lie, so that values can be looked at in place."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.anatomy import Anatomy
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.header import Shard
from ckptcheck.checkpoint.megatron.moments import State, is_state
from ckptcheck.checkpoint.megatron.reading import Located, locate
from ckptcheck.checkpoint.megatron.structure import OUTPUT, promised
from ckptcheck.checkpoint.megatron.tensor import Chunk, GlobalTensor, Item
from ckptcheck.checkpoint.megatron.weights import is_weight
from ckptcheck.checkpoint.tensor import Tensor
from ckptcheck.checkpoint.torch_archive import Archive, UnreadableArchive

if TYPE_CHECKING:
    from ckptcheck.checkpoint.megatron.run import Megatron

STEP = 1 << 24


@dataclass(frozen=True)
class Fault:
    """A chunk or object that cannot be read: the key it belongs to, the file, and why, the end of a sentence."""

    key: str
    file: str
    reason: str


@dataclass(frozen=True)
class Record:
    """A record of an archive: begin and length in bytes of the file. crc: what its directory gives, None without checksums."""

    key: str
    file: str
    begin: int
    length: int
    crc: int | None
    data: bool


@dataclass
class Inspection:
    """located: weight → its chunks and where they lie. faults: what cannot be read. records: whose checksums are stored."""

    located: dict[str, list[tuple[Chunk, Located]]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)


def inspect(run: Megatron) -> Inspection:
    """Open every archive once. What cannot be opened is a fault; that a file is missing or short is others' to say."""
    seen = Inspection()
    opened: dict[Item, bool] = {}
    for name, tensor in run.weights.items():
        for chunk in tensor.chunks:
            if chunk.item is None or run.is_beyond(chunk.item) or chunk.item.transformed:
                continue
            archive = _opened(run, chunk.item, tensor.key, seen, opened)
            if archive is None:
                continue
            try:
                found = locate(run.source, chunk, tensor.dtype, run.item_folder, archive)
                seen.located.setdefault(name, []).append((chunk, found))
            except (UnreadableArchive, OSError) as error:
                seen.faults.append(Fault(tensor.key, run.path_of(chunk.item), str(error)))
    others: list[tuple[str, Item]] = [
        (tensor.key, chunk.item) for tensor in run.tensors.values() for chunk in tensor.chunks if chunk.item is not None
    ]
    others += [(key, item) for key, item in (run.contents.objects if run.contents else {}).items() if item is not None]
    for key, item in others:
        if item not in opened and not run.is_beyond(item) and not item.transformed:
            _opened(run, item, key, seen, opened)
    return seen


def _opened(run: Megatron, item: Item, key: str, seen: Inspection, opened: dict[Item, bool]) -> Archive | None:
    """Open an archive; the first time, note its records, or why it cannot be opened."""
    if opened.get(item) is False:
        return None
    try:
        archive = run.archive(item)
    except (UnreadableArchive, OSError) as error:
        opened[item] = False
        seen.faults.append(Fault(key, run.path_of(item), str(error)))
        return None
    if item not in opened and (archive.checked or not is_weight(key)):
        file = run.path_of(item)
        seen.records += [
            Record(
                run.keys_of_records.get((item.file, name), key),
                file,
                item.begin + found.begin,
                found.length,
                found.crc if archive.checked else None,
                name.split("/")[-2:-1] == ["data"],
            )
            for name, found in archive.records.items()
        ]
    opened[item] = True
    return archive


@dataclass(frozen=True)
class Swept:
    """What reading a record whole showed. corrupt: it has another checksum than its directory says; state: of an optimizer."""

    record: Record
    corrupt: bool
    state: State | None


def sweep(run: Megatron, records: list[Record]) -> list[Swept]:
    """Read every record once, for its checksum and for what an optimizer's state holds. Raises OSError from reading."""

    def look(record: Record) -> Swept:
        state = State() if record.data and is_state(record.key) else None
        dtype = run.tensors[record.key].dtype if state is not None and record.key in run.tensors else ""
        found, at = 0, 0
        while at < record.length:
            raw = run.source.read(record.file, record.begin + at, min(STEP, record.length - at))
            if not raw:
                return Swept(record, False, None)  # it shrank: the value pass says so
            found = zlib.crc32(raw, found) if record.crc is not None else 0
            if state is not None:
                state = state.with_block(raw, dtype)
            at += len(raw)
        return Swept(record, record.crc is not None and found != record.crc, state)

    pool = ThreadPoolExecutor(run.jobs)
    try:
        return list(pool.map(look, records))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class Weights(Checkpoint):
    """The weights of a Megatron checkpoint as the rules about values see one: a tensor for each chunk, in place.

    A chunk that is only part of its weight has the box in its name: ``decoder.layers.0.mlp.linear_fc1[24:48].weight``.
    """

    kind = "values"
    endings = (".distcp", ".pt")

    def __init__(self, run: Megatron) -> None:
        super().__init__(run.source, jobs=run.jobs)
        self._run = run
        self.options = run.options
        multiple = promised(
            run.args, "make_vocab_size_divisible_by"
        )  # times the ranks, and less than all of it is padding
        self.padding = multiple * (promised(run.args, "tensor_model_parallel_size") or 1) - 1 if multiple else 1 << 20
        padded, own = promised(run.args, "padded_vocab_size"), promised(run.args, "vocab_size")
        if padded and own and own <= padded:
            self.padding = min(self.padding, padded - own)

    @cached_property
    def shards(self) -> dict[str, Shard]:
        """File → the chunks in it, at their offsets in the file. Raises Skip where the values are not read."""
        found: dict[str, dict[str, Tensor]] = {}
        for name, chunks in self._run.inspection.located.items():
            whole = self._run.weights[name]
            for chunk, place in chunks:
                entry = Tensor(place.dtype, chunk.sizes, (place.begin, place.begin + place.nbytes))
                found.setdefault(place.name, {})[chunk_name(name, whole, chunk)] = entry
        return {file: Shard(file, self.files[file].size, tensors, readable=True) for file, tensors in found.items()}

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        """The files that hold weights."""
        return tuple(self.shards)

    @cached_property
    def vocabularies(self) -> dict[str, tuple[str, ...]]:
        """Embedding and head → the chunks that hold their rows, in order; not those whose rows are cut or not all there."""
        weights = self._run.weights
        layout = self._run.layout
        shapes = {
            name: Tensor(weights[name].dtype, weights[name].shape, (0, weights[name].nbytes)) for name in layout.outside
        }
        anatomy = Anatomy(None, layout, shapes)
        found = {}
        for name in dict.fromkeys((anatomy.embedding, anatomy.head, OUTPUT if OUTPUT in weights else None)):
            if name is None or not shapes[name].has_rows or shapes[name].shape[0] == 1:  # a critic's head has one
                continue
            parts = {
                chunk.offsets[0]: chunk
                for chunk, _ in self._run.inspection.located.get(name, ())
                if 0 not in chunk.sizes
            }
            reached = 0
            while reached in parts and parts[reached].sizes[1:] == weights[name].shape[1:]:
                reached += parts[reached].sizes[0]
            if reached == weights[name].shape[0]:
                found[name] = tuple(chunk_name(name, weights[name], parts[at]) for at in sorted(parts) if at < reached)
        return found

    @cached_property
    def split(self) -> dict[str, tuple[str, ...]]:
        """Weight → the chunks that hold its parts, where there are several."""
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
        """There is none."""
        return None

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Megatron's own; empty where none were saved."""
        return self._run.args

    @property
    def unread(self) -> Mapping[str, str]:
        """File → why its values could not be read."""
        return self._parts.unread

    @property
    def is_adapter(self) -> bool:
        """It never is one."""
        return False


def chunk_name(name: str, whole: GlobalTensor, chunk: Chunk) -> str:
    """Name a chunk after its weight and, where it is a part, its box."""
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
