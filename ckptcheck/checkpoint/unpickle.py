"""Reads a pickle without executing anything in it: every global becomes a stub that does nothing.

A pickle is a program. Before it runs, this module follows all of its opcodes: it refuses those that no checkpoint needs, memory use
without bound, and keys that take long to hash. Then the pickle runs on `pickle.Unpickler` with a `find_class` that imports nothing.
Opcodes: Lib/pickletools.py of CPython.

`Unpickled.unexpected_globals` lists the globals that a checkpoint does not need, so that a rule can report them:
`torch.load(weights_only=False)` would run them.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, cast

import msgspec

MAX_PICKLE = 1 << 28
"""Longest pickle that is read, in bytes. 25 MB describe 100,000 tensors."""
MAX_MADE = 1 << 24
"""Highest number of containers, tuples and objects that a pickle may create, some hundred bytes each."""
MAX_MEMO = 1 << 24
"""Highest index of a memo entry: the unpickler allocates twice that many entries. 100,000 tensors take 3 million."""
MAX_AXES = 64
"""Highest number of dimensions of a tensor, as in PyTorch."""
MAX_NUMBER = 1024
"""Longest integer, in bytes: the time to convert one grows with the square of its length."""
MAX_ARGUMENTS = 32
"""Most arguments of a call: each object keeps its own copy of them."""
MAX_STATE = 32
"""Most entries of the state of an object that copies it."""
MAX_GLOBALS, MAX_GLOBAL = 1 << 10, 1 << 10
"""Most globals, and the longest name of one: a short pickle can put thousands of long names together."""

Known = Callable[[str, str], Any]
"""Maps the module and the name of a global to its stub, or to None if a checkpoint does not need it."""

MAX_KEYS = 1 << 13
"""Most tuples, and integers beyond 64 bits, as keys or in sets: if all share one hash, CPython compares each pair, 34 million
in all."""
MAX_WEIGHT = 1 << 17
"""Most values that the hashes of these visit together; each comparison of two may visit as many again."""
MAX_DEPTH = 100
"""Deepest nesting of tuples: hashing recurses in C, where Python's recursion limit does not hold."""
_DEPTH = 20
"""A value that is no tuple is 0; a tuple is its weight and, from this bit on, the depth of its nesting."""
_WEIGHT = (1 << _DEPTH) - 1
_FLAT = tuple(1 << _DEPTH | n + 1 for n in range(4))
"""The values of tuples with up to three elements that are no tuples."""
_LENGTHS = {0x8C: 1, 0x58: 4, 0x8D: 8, 0x43: 1, 0x42: 4, 0x8E: 8, 0x8A: 1, 0x8B: 4, 0x55: 1, 0x54: 4, 0x96: 8}
"""Opcodes that push a text, bytes, an integer, or a bytearray (protocol 5 writes numpy arrays so) → bytes of the length that
follows."""
_FIXED = {0x4B: 1, 0x4D: 2, 0x4A: 4, 0x47: 8, 0x4E: 0, 0x88: 0, 0x89: 0, 0x5D: 0, 0x7D: 0, 0x8F: 0}
"""Opcodes that push another value → bytes that follow."""
_INTEGERS = (0x8A, 0x8B)
_MAKERS = b"(]}R\x81\x85\x86\x87\x8f\x91"
_MEMOIZE = b"\x94"


SHARED = 2
"""Values that a walk may meet per byte of the pickle; more than one, because a container may occur in several places."""
LEAST_STEPS = 100_000
"""Values that a walk may always meet, however short the pickle is."""


class UnreadablePickle(Exception):
    """The pickle is broken, too large, or does something that no checkpoint needs. The message is the end of a sentence."""


class WalkBudget:
    """Ends a walk over unpickled values that share containers: 200 bytes can describe lists that unfold without end."""

    def __init__(self, pickle_bytes: int) -> None:
        self._left = LEAST_STEPS + SHARED * pickle_bytes

    def spend(self, values: int = 1) -> None:
        """Count values that the walk meets. Raises UnreadablePickle where there are too many."""
        self._left -= values
        if self._left < 0:
            raise UnreadablePickle("it repeats its containers without end")


class FrozenMeta(type):
    """The type of stubs: BUILD may set state on an object, never on a class."""

    def __setattr__(cls, name: str, value: Any) -> None:
        raise UnreadablePickle("it changes a class")


class ObjectStub(metaclass=FrozenMeta):
    """Stands for an object: its global (`name`), its constructor arguments, and the state that BUILD set."""

    __slots__ = ("arguments", "state")
    name = ""
    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *arguments: Any, **_: Any) -> ObjectStub:
        """Keep the arguments. Raises UnreadablePickle where there are many."""
        if len(arguments) > MAX_ARGUMENTS:
            raise UnreadablePickle("it calls something with more arguments than a checkpoint needs")
        stub = object.__new__(cls)
        stub.arguments = arguments
        stub.state = None
        return stub

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Drop an entry of a container."""

    def append(self, value: Any) -> None:
        """Drop it."""

    def extend(self, values: Any) -> None:
        """Drop them."""

    def get(self, key: str) -> Any:
        """Return an entry of the state; None where there is none."""
        return self.state.get(key) if type(self.state) is dict else None


class DictStub(metaclass=FrozenMeta):
    """Stands for an object that occurs hundreds of thousands of times and keeps its state in its `__dict__`."""

    def __setstate__(self, state: Any) -> None:
        if type(state) is not dict or len(state) > MAX_STATE:
            raise UnreadablePickle("it holds an object with another state than a checkpoint needs")
        self.__dict__.update(state)


class SizeStub(metaclass=FrozenMeta):
    """Stands for torch.Size: a short tuple. A pickle could copy a long one until the memory is full."""

    def __new__(cls, dimensions: Any = ()) -> Any:
        """Return the dimensions."""
        if type(dimensions) is tuple and len(dimensions) <= MAX_AXES:
            return dimensions
        raise UnreadablePickle("it holds a size that no tensor has")


class CallableStub(metaclass=FrozenMeta):
    """A function that a pickle may call but cannot change."""

    __slots__ = ("_function",)
    _function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "_function", function)

    def __call__(self, *arguments: Any) -> Any:
        """Call it. Raises UnreadablePickle where there are many arguments."""
        if len(arguments) > MAX_ARGUMENTS:
            raise UnreadablePickle("it calls something with more arguments than a checkpoint needs")
        return self._function(*arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        raise UnreadablePickle("it changes a function")

    def __setstate__(self, state: Any) -> None:
        raise UnreadablePickle("it changes a function")


class Unpickled(msgspec.Struct):
    """The content of a pickle."""

    value: Any
    """The object that the pickle describes."""
    unexpected_globals: tuple[str, ...] = ()
    """The globals in the pickle that a checkpoint does not need, in order."""


def unpickle(
    raw: bytes,
    known: Known,
    load_persistent: Callable[[Any], Any] | None = None,
) -> Unpickled:
    """Read one pickle.

    Args:
        raw: the bytes of the pickle.
        known: finds stubs. A stub must do nothing when it is called, and take no more memory than its arguments; `make_stub`
            creates one.
        load_persistent: returns the stub for a persistent id (torch.save writes storages so).

    Raises UnreadablePickle.
    """
    _check_opcodes(raw)
    foreign: dict[str, None] = {}
    stubs: dict[tuple[str, str], Any] = {}

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) not in stubs:
                if len(stubs) == MAX_GLOBALS or len(module) + len(name) > MAX_GLOBAL:
                    raise UnreadablePickle("it names more than a checkpoint needs")
                stub = known(module, name)
                if stub is None:
                    foreign[f"{module}.{name}"] = None
                    stub = make_stub(module, name)
                stubs[module, name] = stub
            return stubs[module, name]

        def persistent_load(self, pid: Any) -> Any:
            if load_persistent is None:
                raise UnreadablePickle("it names a persistent object")
            return load_persistent(pid)

        # `_check_opcodes` refuses the opcodes that lead here already.
        def get_extension(self, code: int) -> Any:
            raise UnreadablePickle("it uses the extension registry")

    try:
        value = Reader(io.BytesIO(raw)).load()
    except UnreadablePickle:
        raise
    except MemoryError as error:
        raise UnreadablePickle("it takes too much memory") from error
    except Exception as error:
        raise UnreadablePickle(f"it is broken ({type(error).__name__})") from error
    return Unpickled(value, tuple(foreign))


def make_stub(module: str, name: str) -> type[ObjectStub]:
    """Return a class whose objects keep their arguments and their state, and do nothing."""
    stub: Any = FrozenMeta("ObjectStub", (ObjectStub,), {"name": f"{module}.{name}", "__slots__": ()})
    return cast("type[ObjectStub]", stub)


def _check_opcodes(raw: bytes) -> None:
    """Check all opcodes, and what they cost. Raises UnreadablePickle."""
    if len(raw) > MAX_PICKLE:
        raise UnreadablePickle(f"it has {len(raw):,} bytes, and no more than {MAX_PICKLE:,} are read")
    if _number(raw, _MAKERS) > MAX_MADE:
        raise UnreadablePickle("it makes more objects than a checkpoint needs")
    if _number(raw, _MEMOIZE) > MAX_MEMO:
        raise UnreadablePickle("it remembers more objects than a checkpoint needs")
    try:
        _follow(raw)
    except (IndexError, KeyError):
        return  # the unpickler stops there too


class _Keys:
    """Counts the hashed keys."""

    def __init__(self) -> None:
        self.number = self.weight = 0

    def add(self, values: list[int]) -> None:
        """Count further keys. Raises UnreadablePickle if there are too many."""
        self.number += sum(map(bool, values))
        self.weight += sum(value & _WEIGHT for value in values)
        if self.number > MAX_KEYS or self.weight > MAX_WEIGHT:
            raise UnreadablePickle("its keys take too long to be compared")


def _joined(parts: list[int]) -> int:
    """Return the value of a tuple of these. Raises UnreadablePickle where it is nested too deep."""
    deep = max(parts, default=0) >> _DEPTH
    if deep >= MAX_DEPTH:
        raise UnreadablePickle("its tuples are nested too deep")
    weight = 1 + len(parts) + sum(value & _WEIGHT for value in parts)
    return deep + 1 << _DEPTH | min(weight, MAX_WEIGHT + 1)


def _follow(raw: bytes) -> None:
    """Follow the stack and the memo. One branch per opcode, frequent ones first, because calls would take twice the time.

    CPython hashes a tuple recursively, without a cache: forty tuples that each hold the one before twice take 300 bytes, and a
    trillion steps to hash, in C, where nothing can interrupt it. So each value here is its *weight*: how many values its hash
    visits.
    """
    stack: list[int] = []
    marks: list[int] = []
    memo: dict[int, int] = {}
    keys = _Keys()
    push, lengths, fixed = stack.append, _LENGTHS, _FIXED
    at, end = 0, len(raw)
    while at < end:
        op = raw[at]
        at += 1
        if op == 0x94:  # MEMOIZE
            memo[len(memo)] = stack[-1]
        elif op in fixed:
            at += fixed[op]
            push(0)
        elif op == 0x68:  # BINGET
            push(memo[raw[at]])
            at += 1
        elif op == 0x6A:  # LONG_BINGET
            push(memo[int.from_bytes(raw[at : at + 4], "little")])
            at += 4
        elif op in lengths:
            width = lengths[op]
            length = int.from_bytes(raw[at : at + width], "little")
            at += width + length
            if length > MAX_NUMBER and op in _INTEGERS:
                raise UnreadablePickle("it holds an integer of absurd length")
            # integers that differ by a multiple of 2^61 - 1 share a hash, as tuples can, so count them as keys too
            push(_FLAT[0] if length > 8 and op in _INTEGERS else 0)
        elif 0x85 <= op <= 0x87:  # TUPLE1, TUPLE2, TUPLE3
            first = len(stack) + 0x84 - op
            if first < 0:
                return
            parts = stack[first:]
            stack[first:] = [_joined(parts) if any(parts) else _FLAT[len(parts)]]
        elif op == 0x52 or op == 0x81:  # REDUCE, NEWOBJ: what is called may return what it was given
            given = stack.pop()
            stack[-1] = 0 if given & _WEIGHT == 1 else given
        elif op == 0x28:  # MARK
            marks.append(len(stack))
        elif op == 0x71:  # BINPUT
            memo[raw[at]] = stack[-1]
            at += 1
        elif op == 0x72:  # LONG_BINPUT
            index = int.from_bytes(raw[at : at + 4], "little")
            # the unpickler allocates all entries below the index, and each real entry takes at least a byte of the pickle
            if index > min(at, MAX_MEMO):
                raise UnreadablePickle("it asks for a memo of absurd size")
            memo[index] = stack[-1]
            at += 4
        elif op == 0x74:  # TUPLE
            first = marks.pop()
            stack[first:] = [_joined(stack[first:])]
        elif op == 0x75:  # SETITEMS
            first = marks.pop()
            named = stack[first::2]
            if any(named):
                keys.add(named)
            del stack[first:]
        elif op == 0x73:  # SETITEM
            if stack[-2]:
                keys.add(stack[-2:-1])
            del stack[-2:]
        elif op == 0x62 or op == 0x61:  # BUILD, APPEND
            stack.pop()
        elif op == 0x29:  # EMPTY_TUPLE
            push(_FLAT[0])
        elif op == 0x65:  # APPENDS
            del stack[marks.pop() :]
        elif op == 0x51:  # BINPERSID
            stack[-1] = 0
        elif op == 0x90 or op == 0x91:  # ADDITEMS, FROZENSET
            first = marks.pop()
            parts = stack[first:]
            keys.add(parts)
            stack[first:] = [_joined(parts)] if op == 0x91 else []
        elif op == 0x93:  # STACK_GLOBAL
            stack.pop()
            stack[-1] = 0
        elif op == 0x92:  # NEWOBJ_EX
            del stack[-2:]
            stack[-1] = 0
        elif op == 0x63:  # GLOBAL
            line = raw.find(b"\n", at)
            at = raw.find(b"\n", line + 1) + 1 if line >= 0 else 0
            if at == 0:
                break
            push(0)
        elif op == 0x80:  # PROTO
            at += 1
        elif op == 0x95:  # FRAME
            at += 8
        elif op == 0x2E:  # STOP
            if at < end:
                raise UnreadablePickle("it goes on after its end")
            return
        else:
            raise UnreadablePickle(f"it has the opcode {bytes([op])!r}, which no checkpoint needs")
    raise UnreadablePickle("it ends before it is complete")


def _number(raw: bytes, ops: bytes, step: int = 1 << 18) -> int:
    """Return how many bytes are one of `ops`: an upper bound of the number of such opcodes."""
    parts = (raw[at : at + step] for at in range(0, len(raw), step))
    return sum(len(part) - len(part.translate(None, ops)) for part in parts)
