"""Finds tensors, counters and learning rates in what trainers save beside the weights, without running a pickle.

torch.save files (``optimizer.pt``, ``scheduler.pt``, ``common.pt``, verl's and DeepSpeed's files of ranks) are described by
stubs; JSON files (``trainer_state.json``, ``training_info.json``) are parsed. Counters keep the path under which they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isfinite, prod
from typing import Any, NamedTuple, TypeGuard

import msgspec

from ckptcheck.checkpoint.distributed_tensor import RankShard, describe_shard
from ckptcheck.checkpoint.document import parse_object
from ckptcheck.checkpoint.megatron.stubs import StoredTensor, find_typed_tensor, load_persistent, storage_span
from ckptcheck.checkpoint.megatron.tensor import itemsize
from ckptcheck.checkpoint.source import Source
from ckptcheck.checkpoint.torch_archive import Archive, UnreadableArchive, open_archive
from ckptcheck.checkpoint.torch_file import make_stubs
from ckptcheck.checkpoint.unpickle import ObjectStub, UnreadablePickle, WalkBudget
from ckptcheck.compare.bridge.tensor_layout import FileChunk, TensorLayout
from ckptcheck.errors import EvidenceError

COUNTERS = frozenset(
    (
        "iteration", "global_step", "global_steps", "global_samples", "total_steps", "last_epoch", "_step_count", "num_steps",
        "consumed_train_samples", "consumed_samples", "step",
    )
)  # fmt: skip
"""Keys whose numbers rise from save to save."""
RATES = frozenset(("lr", "_last_lr", "learning_rate", "max_lr"))
NO_COUNTER = re.compile(
    r"(^|\.)(args|hyper_?parameters|config|rng\w*|random_\w+|dataloader|sampler|rerun_\w+)(\.|$)", re.I
)
"""Paths that lead to settings, or to counts that start again in each epoch."""
ARCHIVE = b"PK\x03\x04"
RANK_NUMBER = re.compile(r"(rank)_\d+(_\d+)*")
JSON_FILES = frozenset(("trainer_state.json", "training_info.json", "train_state.json", "scheduler.json", "state.json"))
MOST_JSON = 1 << 27
"""Bytes of the largest JSON file to read: a trainer_state.json with a log of a million steps has about as many."""
DEEP = 64
"""Nesting depth to search for counters: trainers keep them near the top, and a pickle may contain itself."""
MOST_SCALARS = 8
"""Tensors of one element to read under one key: every parameter of an optimizer has its own count of the same steps."""
MOST_NUMBER = 1 << 60
"""Larger than any count of steps."""
LONGEST_LIST = 1 << 14
"""Items of a list to search for counters; longer ones hold data or logs."""
LONGEST_PATH = 1000
"""Characters of the path of keys to a value: long keys in deep tables would take quadratic memory."""


class StateFile(NamedTuple):
    """What one file holds."""

    tensors: dict[str, TensorLayout]
    """Path within the file → where the tensor lies."""
    shards: dict[str, RankShard]
    """Path → which part it is, of those tensors that are parts of one that several ranks share."""
    counters: dict[str, float]
    rates: dict[str, float]
    keys: tuple[str, ...] = ()
    """The keys of the dictionary that it holds."""


def read_state_file(source: Source, name: str) -> StateFile:
    """Describe a torch.save file. Raises UnreadableArchive, OSError."""
    archive, described = open_state_file(source, name)
    tensors: dict[str, TensorLayout] = {}
    shards: dict[str, RankShard] = {}
    scalars: dict[str, list[tuple[str, StoredTensor]]] = {}
    counters: dict[str, float] = {}
    rates: dict[str, float] = {}
    try:
        for path, value in walk(described, WalkBudget(len(archive.pickle))):
            last = path.rpartition(".")[2]
            if isinstance(value, RankShard):
                shards[path] = value
                value = value.local
            if isinstance(value, StoredTensor):
                if value.shape in ((), (1,)) and last in COUNTERS:
                    scalars.setdefault(last, []).append((path, value))
                elif (layout := lay_out(archive, value, name, 0)) is not None and layout.shape:
                    tensors[path] = layout
            else:
                note_number(path, value, counters, rates)
    except UnreadablePickle as error:
        raise UnreadableArchive(str(error)) from error
    for last, found in scalars.items():
        for path, tensor in found[:: max(1, len(found) // MOST_SCALARS)][:MOST_SCALARS]:
            number = read_scalar(source, lay_out(archive, tensor, name, 0))
            if number is not None and not NO_COUNTER.search(path):
                key = path if len(found) == 1 else f"optimizer {last}"
                counters[key] = max(number, counters.get(key, number))
    keys = tuple(map(str, described)) if isinstance(described, dict) else ()
    return StateFile(tensors, {path: shard for path, shard in shards.items() if path in tensors}, counters, rates, keys)


def open_state_file(source: Source, name: str) -> tuple[Archive, Any]:
    """Return a torch.save file and the object that its pickle describes. Raises UnreadableArchive, OSError."""
    archive = open_archive(lambda start, length: source.read(name, start, length), source.files[name].size)
    described, _ = archive.describe(make_stubs(len(archive.pickle)), load_persistent)
    return archive, described


def explain_torn(source: Source, name: str) -> str:
    """Return why a file begins as torch.save writes it and is not whole, "" for any other. Nothing of its objects is read."""
    size = source.files[name].size
    if not size:
        return "it is empty"
    try:
        if source.read(name, 0, 4) == ARCHIVE:
            open_archive(lambda start, length: source.read(name, start, length), size)
    except UnreadableArchive as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def read_json_numbers(raw: bytes) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Return the counters, the learning rates, and step → learning rate of the log, in a JSON file of a trainer.

    JSON that is no object has none. Raises EvidenceError for what is no JSON.
    """
    try:
        document = msgspec.json.decode(raw)
    except (
        msgspec.MsgspecError,
        RecursionError,
        UnicodeDecodeError,
    ):  # Python writes NaN, as a log of gradients may hold
        document, defects = parse_object(raw)
        if document is None and defects[0].kind != "not-object":
            raise EvidenceError(defects[0].text) from None
    counters: dict[str, float] = {}
    rates: dict[str, float] = {}
    logged: dict[str, float] = {}
    if isinstance(document, dict):
        for key, value in document.items():
            if isinstance(key, str) and key != "step":  # it may be a step within an epoch
                note_number(key, value, counters, rates)
        log = document.get("log_history")
        for entry in log if isinstance(log, list) else ():
            step, rate = (entry.get("step"), entry.get("learning_rate")) if isinstance(entry, dict) else (None, None)
            if type(step) is int and abs(step) < MOST_NUMBER and is_number(rate):
                logged[str(step)] = float(rate)
    return counters, rates, logged


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a value is a finite number that a float can hold: JSON and pickles have integers of any length."""
    return type(value) in (int, float) and abs(value) < MOST_NUMBER and isfinite(value)


def note_number(path: str, value: Any, counters: dict[str, float], rates: dict[str, float]) -> None:
    """Add a number to the counters or to the learning rates, if its path ends as theirs do."""
    before, _, last = path.rpartition(".")
    if before and last.isdecimal():  # an entry of a list, as `_last_lr` is
        last = before.rpartition(".")[2]
    if last not in COUNTERS and last not in RATES:
        return
    if is_number(value) and not NO_COUNTER.search(path):
        if last in COUNTERS and type(value) is int:
            # every group of parameters counts the same steps
            counters[re.sub(r"\bparam_groups\.\d+", "param_groups", path)] = float(value)
        elif last in RATES and last != "max_lr":
            rates[path] = float(value)


def walk(value: Any, budget: WalkBudget) -> Iterator[tuple[str, Any]]:
    """Yield the path of every tensor, part of a tensor and plain number of an unpickled object.

    Raises UnreadablePickle where it has no end.
    """
    # a stack, not recursion: each value would pass through a generator for every container around it
    waiting = [iter([("", value)])]
    while waiting:
        for path, entry in waiting[-1]:
            budget.spend()
            if len(path) > LONGEST_PATH:
                raise UnreadablePickle(f"it has keys that come to more than {LONGEST_PATH:,} characters")
            found = find_typed_tensor(entry)
            if isinstance(found, (StoredTensor, int, float)):
                yield path, found
            elif is_typed_tensor(found) and (shard := describe_shard(found)) is not None:
                yield path, shard
            elif isinstance(found, (dict, list, tuple, ObjectStub)) and len(waiting) <= DEEP + 1:
                waiting.append(_iter_entries(found, path))
                break
        else:
            waiting.pop()


def is_typed_tensor(value: Any) -> TypeGuard[ObjectStub]:
    """Whether a value stands for a tensor of a type of its own, such as a DTensor."""
    return isinstance(value, ObjectStub) and value.name.endswith("._rebuild_from_type_v2")


def _iter_entries(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield what a container or an object holds, each with its path."""
    if isinstance(value, dict):
        start = f"{path}." if path else ""
        for key, entry in value.items():
            if type(key) in (str, int):
                yield f"{start}{key}", entry
    elif isinstance(value, (list, tuple)):
        start = f"{path}." if path else ""
        if len(value) <= LONGEST_LIST:
            for place, entry in enumerate(value):
                yield f"{start}{place}", entry
    elif is_typed_tensor(value):
        # a DTensor: what describes its mesh is no tensor of the model
        state = value.arguments[-1] if value.arguments else None
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict) and "_local_tensor" in part:
                yield path, part["_local_tensor"]
    elif isinstance(value.state, dict):
        yield path, value.state


def lay_out(archive: Archive, tensor: StoredTensor, file: str, begin: int) -> TensorLayout | None:
    """Return where the elements of a stored tensor lie; None where they are not there, or repeat.

    begin: where the archive begins in the file, in bytes.
    """
    record, each = archive.records.get(tensor.record), itemsize(tensor.dtype)
    if record is None or archive.big_endian:
        return None
    span = storage_span(tensor)
    if tensor.skip * each + span > record.length or prod(tensor.shape) * each > span:
        return None
    strides = tuple(step * each for step in tensor.stride)
    chunk = FileChunk((0,) * len(tensor.shape), tensor.shape, file, begin + record.begin + tensor.skip * each, strides)
    return TensorLayout(tensor.dtype, each, tensor.shape, (chunk,))


def read_scalar(source: Source, layout: TensorLayout | None) -> float | None:
    """Read a tensor of one number; None where it is none."""
    if layout is None or prod(layout.shape) != 1 or len(layout.chunks) != 1:
        return None
    import numpy as np

    from ckptcheck.values.dtypes import FORMATS, decode

    chunk = layout.chunks[0]
    raw = source.read(chunk.file, chunk.offset, layout.itemsize)
    if len(raw) != layout.itemsize or layout.dtype not in FORMATS:
        return None
    number = float(decode(layout.dtype, np.frombuffer(raw, f"<u{layout.itemsize}"))[0])
    return number if isfinite(number) else None


def merge_numbers(file: str, numbers: Mapping[str, float], into: dict[str, float]) -> None:
    """Add the numbers of a file under ``file: path``. Files of ranks share a name as long as they count alike."""
    shared = share_name(file)
    for path, value in numbers.items():
        if into.setdefault(f"{shared}: {path}", value) != value:
            into[f"{file}: {path}"] = value


def share_name(file: str) -> str:
    """Return a name that the files of all ranks have.

    >>> share_name("extra_state_world_size_2_rank_1.pt")
    'extra_state_world_size_2_rank_*.pt'
    """
    return RANK_NUMBER.sub(r"\1_*", file)
