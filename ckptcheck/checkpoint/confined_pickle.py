"""Reads a pickle in a confined process, and rebuilds what it described from an answer that is only data.

The confined process (`confinement`) unpickles with stubs (`unpickle`) and writes the objects it got as MessagePack: plain values as
they are, containers and stubs as numbered nodes, so that one that stands in several places stays one. This process never runs the
unpickler where there can be a confined one; what it decodes creates lists, dictionaries and stubs, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import msgspec

from ckptcheck.checkpoint.confinement import ConfinedReader, Ended, can_confine, run_confined
from ckptcheck.checkpoint.megatron.stubs import Storage, StorageType, StoredTensor
from ckptcheck.checkpoint.pickled_storage import PickledStorage, PickledTensor
from ckptcheck.checkpoint.unpickle import (
    MAX_PICKLE,
    FrozenMeta,
    ObjectStub,
    Unpickled,
    UnreadablePickle,
    make_stub,
    unpickle,
)

Known = Callable[[str, str], Any]
LEAST_SECONDS, LEAST_MEMORY, MEMORY_A_BYTE = 4, 200 << 20, 60
"""Limits of the process: seconds (and one for each megabyte), bytes of memory (and so many for each byte).

19 MB that describe 50,000 tensors take 3 seconds on a slow machine and 20 bytes of memory a byte.
"""
SHORT = 4096
"""Bytes of a pickle that a process reads after others: starting one takes longer. Its answer is kept, since a checkpoint describes
each of its thousand chunks of one shape with the same bytes."""
SHORT_SECONDS = 1
"""Processor time of that process, after which another is started: thousands of pickles. One that never ends is tried twice."""
INLINE = 64
"""Longest text and run of bytes that is written wherever it stands; a longer one is a node."""
MAX_KEYS = 1 << 24
"""Values that the keys of a container may unfold to: a tuple of tuples is hashed through, once for each place that it stands in."""
_NUMBERS = frozenset((int, float, bool, type(None)))
_LARGEST = (1 << 63) - 1
"""The largest integer of 64 bits, as the answer of the child holds it; longer ones go the slow way."""
_BROKEN = (UnicodeError, LookupError, TypeError, ValueError, AttributeError, OverflowError, msgspec.MsgspecError)


@dataclass(frozen=True)
class PerPickle:
    """Makes the stubs anew for each pickle, of which it is given the number of bytes: some stubs count what they made."""

    make: Callable[[int], Known]


class _Tree(msgspec.Struct, array_like=True):
    """The nodes of a value, and its place among them: tensors, growing and fixed ones, numbered in this order.

    A reference to a node is a list with its number.
    """

    root: Any
    tensors: list[StoredTensor]
    growing: list[tuple[int, str]]
    """Nodes that may hold themselves: their kind and, of a stub, its name."""
    fixed: list[list[Any]]
    """The other nodes, each behind those that it holds: its kind, and what it is made of."""
    content: list[list[Any]]
    """What the growing nodes hold."""
    foreign: tuple[str, ...] = ()


_RECORDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    kind.__name__: (kind, tuple(kind.__annotations__)) for kind in (Storage, StorageType, PickledStorage, PickledTensor)
}
"""What the stubs of `megatron.stubs` and `pickled_storage` return → its class and its fields."""
_RECORDS_BY_CLASS = {kind: (name, fields) for name, (kind, fields) in _RECORDS.items()}
_LIST, _DICTIONARY, _SET, _OBJECT = range(4)
_TUPLE, _FROZENSET, _TEXT, _BYTES, _INTEGER, _CLASS, _RECORD = range(7)


def unpickle_confined(
    raw: bytes, known: Known | PerPickle, load_persistent: Callable[[Any], Any] | None = None
) -> Unpickled:
    """Read one pickle as `unpickle` does, in a confined process where there can be one. Raises UnreadablePickle."""
    if len(raw) <= SHORT:
        return _read_short(raw, known, load_persistent)
    return _read(raw, known, load_persistent)


@lru_cache(256)
def _read_short(raw: bytes, known: Known | PerPickle, load_persistent: Callable[[Any], Any] | None) -> Unpickled:
    if (reader := _find_reader(known, load_persistent)) is not None and (encoded := reader.ask(raw)) is not None:
        return _decode(encoded)
    return _read(raw, known, load_persistent)  # alone, so that what ended the process is said of this pickle


@cache
def _find_reader(known: Known | PerPickle, load_persistent: Callable[[Any], Any] | None) -> ConfinedReader | None:
    """Return the process that reads short pickles with these stubs; None where there can be none.

    There is one for each kind of file, and none is dropped: its process would go on waiting, and keep its pipes.
    """
    if not can_confine():
        return None
    return ConfinedReader(lambda raw: _answer(raw, known, load_persistent), seconds=SHORT_SECONDS, memory=LEAST_MEMORY)


def _read(raw: bytes, known: Known | PerPickle, load_persistent: Callable[[Any], Any] | None) -> Unpickled:
    if len(raw) > MAX_PICKLE:
        raise UnreadablePickle(f"it has {len(raw):,} bytes, and no more than {MAX_PICKLE:,} are read")
    try:
        encoded = run_confined(
            lambda: _answer(raw, known, load_persistent),
            seconds=LEAST_SECONDS + (len(raw) >> 20),
            memory=LEAST_MEMORY + MEMORY_A_BYTE * len(raw),
        )
    except Ended as ended:
        raise UnreadablePickle(str(ended)) from ended
    if encoded is None:
        return unpickle(raw, _find_stubs(known, raw), load_persistent)
    return _decode(encoded)


def _find_stubs(known: Known | PerPickle, raw: bytes) -> Known:
    return known.make(len(raw)) if isinstance(known, PerPickle) else known


def _answer(raw: bytes, known: Known | PerPickle, load_persistent: Callable[[Any], Any] | None) -> bytes:
    """Return what the confined process writes: what the pickle described, or why it cannot be read."""
    try:
        return b"+" + encode_tree(unpickle(raw, _find_stubs(known, raw), load_persistent))
    except UnreadablePickle as error:
        return str(error).encode("utf-8", "replace")
    except (*_BROKEN, RecursionError):
        return b"it describes what no checkpoint holds"


def _decode(encoded: bytes) -> Unpickled:
    if encoded[:1] != b"+":
        raise UnreadablePickle(encoded[:1000].decode("utf-8", "replace"))
    return decode_tree(encoded[1:])


def encode_tree(unpickled: Unpickled) -> bytes:
    """Write what a pickle described. Raises UnreadablePickle where a stub holds what no stub holds."""
    tensors, growing, fixed = _sort_nodes(unpickled.value)
    numbers = {id(node): number for number, node in enumerate([*tensors, *growing, *fixed])}

    def refer(value: Any) -> Any:
        return value if _is_inline(value) else [numbers[id(value)]]

    def refer_all(values: Iterable[Any]) -> list[Any]:
        values = list(values)
        return values if _is_plain(values) else [refer(value) for value in values]

    tree = _Tree(
        refer(unpickled.value),
        tensors,
        [(_kind_of(node), node.name if isinstance(node, ObjectStub) else "") for node in growing],
        [_write_fixed(node, refer_all) for node in fixed],
        [refer_all(_list_content(node)) for node in growing],
        tuple(name.encode("utf-8", "replace").decode() for name in unpickled.unexpected_globals),
    )
    return msgspec.msgpack.encode(tree)


def _sort_nodes(root: Any) -> tuple[list[StoredTensor], list[Any], list[Any]]:
    """Return the tensors, the nodes that may hold themselves, and the others, each behind those that it holds."""
    tensors: list[StoredTensor] = []
    growing: list[Any] = []
    fixed: list[Any] = []
    found: set[int] = set()
    waiting: list[tuple[Any, bool]] = [(root, False)]
    while waiting:
        value, is_left = waiting.pop()
        if is_left:
            fixed.append(value)
            continue
        if _is_inline(value) or id(value) in found:
            continue
        found.add(id(value))
        if type(value) is StoredTensor:
            tensors.append(value)
            continue
        if isinstance(value, (list, dict, set, ObjectStub)):
            growing.append(value)
        else:
            waiting.append((value, True))
        content = _list_content(value)
        if not _is_plain(content):
            waiting += [(part, False) for part in content]
    return tensors, growing, fixed


def _is_inline(value: Any) -> bool:
    kind = type(value)
    if kind is int:
        return -_LARGEST <= value <= _LARGEST  # type: ignore[no-any-return]
    if kind is str:
        return len(value) <= INLINE and value.isascii()
    return kind in _NUMBERS or (kind is bytes and len(value) <= INLINE)


def _is_plain(values: list[Any]) -> bool:
    """Whether all values are numbers, told without looking at each in Python."""
    if not set(map(type, values)) <= _NUMBERS:
        return False
    integers = [value for value in values if type(value) is int]
    return not integers or (min(integers) >= -_LARGEST and max(integers) <= _LARGEST)


def _list_content(value: Any) -> list[Any]:
    """Return the values that a node holds."""
    if isinstance(value, dict):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, ObjectStub):
        return [value.state, *value.arguments]
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    record = _RECORDS_BY_CLASS.get(type(value))
    return [getattr(value, name) for name in record[1]] if record else []


def _kind_of(value: Any) -> int:
    if isinstance(value, ObjectStub):
        return _OBJECT
    return _LIST if isinstance(value, list) else _DICTIONARY if isinstance(value, dict) else _SET


def _write_fixed(value: Any, refer_all: Callable[[Iterable[Any]], list[Any]]) -> list[Any]:
    if isinstance(value, (tuple, frozenset)):
        return [_TUPLE if isinstance(value, tuple) else _FROZENSET, *refer_all(value)]
    if type(value) is str:
        return [_TEXT, value.encode("utf-8", "surrogatepass")]
    if type(value) in (bytes, bytearray):  # nothing changes a bytearray any more: it comes back as bytes
        return [_BYTES, bytes(value)]
    if type(value) is int:
        return [_INTEGER, f"{value:x}"]
    if (record := _RECORDS_BY_CLASS.get(type(value))) is not None:
        return [_RECORD, record[0], *refer_all(_list_content(value))]
    return [_CLASS, str(getattr(value, "name", "")) if isinstance(value, FrozenMeta) else ""]


def decode_tree(raw: bytes) -> Unpickled:
    """Rebuild what a pickle described. Raises UnreadablePickle where the answer is not one of `encode_tree`."""
    try:
        tree = msgspec.msgpack.decode(raw, type=_Tree)
        stubs: dict[str, Any] = {}
        nodes: list[Any] = [*tree.tensors, *(_create_growing(kind, name, stubs) for kind, name in tree.growing)]
        weights = [1] * len(nodes)
        for kind, *parts in tree.fixed:
            heavy = sum(weights[part[0]] if type(part) is list else 1 for part in parts) if kind < _TEXT else 0
            _require_light(heavy if kind == _FROZENSET else 0)
            weights.append(1 + heavy)
            nodes.append(_create_fixed(kind, parts, nodes, stubs))
        for node, parts in zip(nodes[len(tree.tensors) :], tree.content, strict=False):
            _fill(node, parts, nodes, weights)
        value = nodes[tree.root[0]] if type(tree.root) is list else tree.root
    except _BROKEN as error:
        raise UnreadablePickle("its reader gave no answer that can be read") from error
    return Unpickled(value, tree.foreign)


def _require_light(keys: int) -> None:
    if keys > MAX_KEYS:
        raise UnreadablePickle("it uses keys that take long to compare")


def _create_growing(kind: int, name: str, stubs: dict[str, Any]) -> Any:
    if kind == _OBJECT:
        stub = object.__new__(_find_stub(name, stubs))
        stub.arguments, stub.state = (), None
        return stub
    return ([], {}, set())[kind]


def _find_stub(name: str, stubs: dict[str, Any]) -> Any:
    if name not in stubs:
        module, _, last = name.rpartition(".")
        stubs[name] = make_stub(module, last)
    return stubs[name]


def _create_fixed(kind: int, parts: list[Any], nodes: list[Any], stubs: dict[str, Any]) -> Any:
    if kind in (_TUPLE, _FROZENSET):
        made = tuple([nodes[part[0]] if type(part) is list else part for part in parts])
        return made if kind == _TUPLE else frozenset(made)
    if kind == _TEXT:
        return parts[0].decode("utf-8", "surrogatepass")
    if kind == _BYTES:
        return bytes(parts[0])
    if kind == _INTEGER:
        return int(parts[0], 16)
    if kind == _CLASS:
        return _find_stub(parts[0], stubs)
    name, *fields = parts
    found, names = _RECORDS[name]
    filled = {field: nodes[part[0]] if type(part) is list else part for field, part in zip(names, fields, strict=True)}
    return msgspec.convert(filled, found) if issubclass(found, msgspec.Struct) else found(**filled)


def _fill(node: Any, parts: list[Any], nodes: list[Any], weights: list[int]) -> None:
    """Put into a growing node what it holds."""
    values = (
        parts
        if set(map(type, parts)) <= _NUMBERS
        else [nodes[part[0]] if type(part) is list else part for part in parts]
    )
    if isinstance(node, list):
        node.extend(values)
    elif isinstance(node, ObjectStub):
        node.state, node.arguments = values[0], tuple(values[1:])
    else:
        step = 2 if isinstance(node, dict) else 1
        _require_light(sum(weights[part[0]] for part in parts[::step] if type(part) is list))
        if isinstance(node, dict):
            node.update(zip(values[::2], values[1::2], strict=True))
        else:
            node.update(values)
