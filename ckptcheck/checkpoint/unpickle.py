"""Reads a pickle without executing anything in it: every global becomes a stub that does nothing.

A pickle is a program. Before it runs, this module checks all of its opcodes (mostly with a regular expression; 25 MB take a
fifth of a second): it refuses opcodes that no checkpoint needs, memory use without bound, and keys that take long to hash
(`hash_cost`). Then the pickle runs on `pickle.Unpickler` with a `find_class` that imports nothing. Opcodes: Lib/pickletools.py of
CPython.

`Unpickled.unexpected_globals` lists the globals that a checkpoint does not need, so that a rule can report them:
`torch.load(weights_only=False)` would run them.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from ckptcheck.checkpoint.hash_cost import CostlyKeys, check_hash_cost

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

_SHORT = 128
"""The regular expression skips strings shorter than this, which nearly all names of tensors are."""


def _counted(op: bytes, lengths: range) -> bytes:
    """Return a pattern for an opcode with a length of one byte."""
    return re.escape(op) + b"(?:" + b"|".join(re.escape(bytes([n])) + b".{%d}" % n for n in lengths) + b")"


_PLAIN = re.compile(
    rb"(?:[()\]}NQRabestu.\x81\x85-\x89\x8f-\x94]++|[Khq].|M..|[Jj]....|G.{8}|\x95.{8}|"
    + _counted(b"\x8c", range(_SHORT))
    + b"|"
    + _counted(b"\x8a", range(10))
    + b")*+",
    re.DOTALL,
)
"""Opcodes of fixed length, short strings and 64-bit integers. STOP is among them: a run ends there only if it is the last."""
_LENGTHS = {0x8C: 1, 0x58: 4, 0x8D: 8, 0x43: 1, 0x42: 4, 0x8E: 8, 0x8A: 1, 0x8B: 4, 0x55: 1, 0x54: 4, 0x96: 8}
"""Opcode → bytes of the length that follows it: text, bytes, integers, and bytearrays, as protocol 5 writes numpy arrays."""
_INTEGERS = (0x8A, 0x8B)
_LONG_BINPUT = 0x72
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


@dataclass
class Unpickled:
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
    _walk(raw)
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

        # `_walk` refuses the opcodes that lead here already.
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


def _walk(raw: bytes) -> None:
    """Check all opcodes, and what they cost. Raises UnreadablePickle."""
    if len(raw) > MAX_PICKLE:
        raise UnreadablePickle(f"it has {len(raw):,} bytes, and no more than {MAX_PICKLE:,} are read")
    if _number(raw, _MAKERS) > MAX_MADE:
        raise UnreadablePickle("it makes more objects than a checkpoint needs")
    if _number(raw, _MEMOIZE) > MAX_MEMO:
        raise UnreadablePickle("it remembers more objects than a checkpoint needs")
    at, end, plain = 0, len(raw), _PLAIN.match
    while True:
        match = plain(raw, at)
        assert match is not None
        start, at = at, match.end()
        if at >= end:
            if start == at or raw[-1] != 0x2E:
                raise UnreadablePickle("it ends before it is complete")
            break
        op = raw[at]
        if (width := _LENGTHS.get(op)) is not None:
            length = int.from_bytes(raw[at + 1 : at + 1 + width], "little")
            if op in _INTEGERS and length > MAX_NUMBER:
                raise UnreadablePickle("it holds an integer of absurd length")
            at += 1 + width + length
        elif op == _LONG_BINPUT:
            index = int.from_bytes(raw[at + 1 : at + 5], "little")
            # the unpickler allocates all entries below the index, and each real entry takes at least a byte of the pickle
            if index > min(at, MAX_MEMO):
                raise UnreadablePickle("it asks for a memo of absurd size")
            at += 5
        elif op == 0x80:  # PROTO
            at += 2
        elif op == 0x63:  # GLOBAL: module and name, a line each
            if (line := raw.find(b"\n", at)) < 0 or (line := raw.find(b"\n", line + 1)) < 0:
                raise UnreadablePickle("it ends before it is complete")
            at = line + 1
        else:
            raise UnreadablePickle(f"it has the opcode {bytes([op])!r}, which no checkpoint needs")
        if at > end:
            raise UnreadablePickle("it ends before it is complete")
    try:
        check_hash_cost(raw)
    except CostlyKeys as error:
        raise UnreadablePickle(str(error)) from error


def _number(raw: bytes, ops: bytes, step: int = 1 << 18) -> int:
    """Return how many bytes are one of `ops`: an upper bound of the number of such opcodes."""
    parts = (raw[at : at + step] for at in range(0, len(raw), step))
    return sum(len(part) - len(part.translate(None, ops)) for part in parts)
