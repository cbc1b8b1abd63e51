"""Reads a pickle without executing anything in it: every global becomes a stand-in that does nothing.

A pickle is a program. Before it runs, all of its opcodes are walked over (a regular expression does most of that, a fifth of
a second for 25 MB): opcodes that no checkpoint needs are refused, and so is what would take memory without bound. Then it
runs on `pickle.Unpickler` with a `find_class` that imports nothing. Opcodes: Lib/pickletools.py of CPython.

What a pickle names beyond what a checkpoint needs is kept in `Unpickled.foreign`, so that a rule can tell: whoever loads it
with `torch.load(weights_only=False)` runs that.
"""

from __future__ import annotations

import io
import pickle
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

MAX_PICKLE = 1 << 28
"""Longest pickle that is read, in bytes. 25 MB describe 100,000 tensors."""
MAX_MADE = 1 << 24
"""The most containers, tuples and objects that a pickle may make, some hundred bytes each."""
MAX_MEMO = 1 << 24
"""The highest number that a memo entry may have: the unpickler keeps a list as long, twice over. 100,000 tensors take 3 million."""
MAX_AXES = 64
"""The most dimensions that a tensor may have here, as in PyTorch."""
MAX_NUMBER = 1024
"""Longest integer, in bytes: converting longer ones takes time that grows with the square."""
FRAME = 512
"""Bytes of stack that one level of nesting takes when a tuple is hashed: CPython does that without looking at the stack."""
DEEP = 500
"""Tuples in a row that any thread's stack stands."""

_SHORT = 128
"""Texts shorter than this are skipped by the regular expression: nearly all names of tensors."""


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
"""Opcodes of fixed length, short texts and integers of 64 bits. STOP is among them: a run ends there only if it is the last."""
_LENGTHS = {0x8C: 1, 0x58: 4, 0x8D: 8, 0x43: 1, 0x42: 4, 0x8E: 8, 0x8A: 1, 0x8B: 4, 0x55: 1, 0x54: 4}
"""Opcode → bytes of the length that follows it: text, bytes, integers."""
_INTEGERS = (0x8A, 0x8B)
_LONG_BINPUT = 0x72
_MAKERS = b"(]}R\x81\x85\x86\x87\x8f\x91"
_TUPLES = b"\x85\x86\x87t"
_MEMOIZE = b"\x94"


class UnreadablePickle(Exception):
    """The pickle is broken, or too large, or does what no checkpoint does. The message is one sentence's end."""


class Sealed(type):
    """The type of stand-ins: BUILD may set state on an object, never on a class."""

    def __setattr__(cls, name: str, value: Any) -> None:
        raise UnreadablePickle("it changes a class")


class Record(metaclass=Sealed):
    """What stands for an object: its global, the arguments it was made from, and in `state` what was set on it after."""

    __slots__ = ("arguments", "state")
    name = ""
    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *arguments: Any, **_: Any) -> Record:
        """Keep the arguments."""
        made = object.__new__(cls)
        made.arguments = arguments
        made.state = None
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Take what a container is filled with, and drop it."""

    def append(self, value: Any) -> None:
        """Drop it."""

    def extend(self, values: Any) -> None:
        """Drop them."""

    def get(self, key: str) -> Any:
        """Return an entry of the state, None where there is none."""
        return self.state.get(key) if type(self.state) is dict else None


class Lean(metaclass=Sealed):
    """What stands for an object of which there are hundreds of thousands, and whose state is a dictionary: its `__dict__`.

    It has no code of its own to run, so that the unpickler makes it and sets its state without leaving C.
    """


class Size(metaclass=Sealed):
    """Stands for torch.Size: a short tuple. A long one could be copied again and again until the memory is full."""

    def __new__(cls, dimensions: Any = ()) -> Any:
        """Return the dimensions."""
        if type(dimensions) is tuple and len(dimensions) <= MAX_AXES:
            return dimensions
        raise UnreadablePickle("it holds a size that no tensor has")


class Inert(metaclass=Sealed):
    """A function that a pickle may call, and that it cannot change."""

    __slots__ = ("_function",)
    _function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "_function", function)

    def __call__(self, *arguments: Any) -> Any:
        """Call it."""
        return self._function(*arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        raise UnreadablePickle("it changes a function")

    def __setstate__(self, state: Any) -> None:
        raise UnreadablePickle("it changes a function")


@dataclass
class Unpickled:
    """value: what the pickle describes. foreign: the globals it named beyond what a checkpoint needs, in order."""

    value: Any
    foreign: tuple[str, ...] = ()


def unpickle(
    raw: bytes,
    known: Callable[[str, str], Any],
    load_persistent: Callable[[Any], Any] | None = None,
) -> Unpickled:
    """Read one pickle.

    known: module, name → what stands in for that global, or None where a checkpoint does not need it; `stand_in` makes one.
    It has to be something that does nothing when it is called, and takes no more memory than its arguments.
    load_persistent: what stands for a persistent id (torch.save writes storages so).

    Raises UnreadablePickle.
    """
    tuples = _walk(raw)
    foreign: dict[str, None] = {}
    made: dict[tuple[str, str], Any] = {}

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) not in made:
                found = known(module, name)
                if found is None:
                    foreign[f"{module}.{name}"] = None
                    found = stand_in(module, name)
                made[module, name] = found
            return made[module, name]

        def persistent_load(self, pid: Any) -> Any:
            if load_persistent is None:
                raise UnreadablePickle("it names a persistent object")
            return load_persistent(pid)

        def get_extension(self, code: int) -> Any:  # the walk refuses its opcodes already
            raise UnreadablePickle("it uses the extension registry")

    def load() -> Any:
        return Reader(io.BytesIO(raw)).load()

    try:
        value = load() if tuples <= DEEP else _with_stack(load, tuples * FRAME)
    except UnreadablePickle:
        raise
    except MemoryError as error:
        raise UnreadablePickle("it takes too much memory") from error
    except Exception as error:
        raise UnreadablePickle(f"it is broken ({type(error).__name__})") from error
    return Unpickled(value, tuple(foreign))


def stand_in(module: str, name: str) -> type[Record]:
    """Return a class whose objects keep the arguments and the state they are given, and do nothing."""
    made: Any = Sealed("Record", (Record,), {"name": f"{module}.{name}", "__slots__": ()})
    return cast("type[Record]", made)


def _walk(raw: bytes) -> int:
    """Walk over the opcodes; return how many tuples it makes at the most. Raises UnreadablePickle."""
    if len(raw) > MAX_PICKLE:
        raise UnreadablePickle(f"it has {len(raw):,} bytes, and no more than {MAX_PICKLE:,} are read")
    if _number(raw, _MAKERS) > MAX_MADE:
        raise UnreadablePickle("it makes more objects than a checkpoint needs")
    if _number(raw, _MEMOIZE) > MAX_MEMO:
        raise UnreadablePickle("it remembers more objects than a checkpoint needs")
    at, end, plain = 0, len(raw), _PLAIN.match
    while True:
        found = plain(raw, at)
        assert found is not None
        start, at = at, found.end()
        if at >= end:
            if start == at or raw[-1] != 0x2E:
                raise UnreadablePickle("it ends before it is complete")
            return _number(raw, _TUPLES)
        op = raw[at]
        if (width := _LENGTHS.get(op)) is not None:
            length = int.from_bytes(raw[at + 1 : at + 1 + width], "little")
            if op in _INTEGERS and length > MAX_NUMBER:
                raise UnreadablePickle("it holds an integer of absurd length")
            at += 1 + width + length
        elif op == _LONG_BINPUT:
            index = int.from_bytes(raw[at + 1 : at + 5], "little")
            # each entry takes at least a byte to make, and there would be room for all below it
            if index > min(at, MAX_MEMO):
                raise UnreadablePickle("it asks for a memo of absurd size")
            at += 5
        elif op == 0x80:  # PROTO
            at += 2
        elif op == 0x63:  # GLOBAL: module and name, a line each
            at = raw.find(b"\n", raw.find(b"\n", at) + 1) + 1
            if at == 0:
                raise UnreadablePickle("it ends before it is complete")
        else:
            raise UnreadablePickle(f"its opcode {bytes([op])!r} is none that a checkpoint needs")
        if at > end:
            raise UnreadablePickle("it ends before it is complete")


def _number(raw: bytes, ops: bytes, step: int = 1 << 18) -> int:
    """Return how many bytes are one of these, at least as many as there are such opcodes."""
    parts = (raw[at : at + step] for at in range(0, len(raw), step))
    return sum(len(part) - len(part.translate(None, ops)) for part in parts)


def _with_stack(load: Callable[[], Any], size: int) -> Any:
    """Run on a stack that the deepest nesting cannot overflow; what is not used of it takes no memory."""
    result: list[Any] = []
    error: list[BaseException] = []

    def run() -> None:
        try:
            result.append(load())
        except BaseException as found:
            error.append(found)

    before = threading.stack_size(max(1 << 20, -(-(size + (1 << 20)) // 4096) * 4096))
    try:
        thread = threading.Thread(target=run)
        thread.start()
    except RuntimeError as failed:
        raise UnreadablePickle("it nests more deeply than this machine has stack for") from failed
    finally:
        threading.stack_size(before)
    thread.join()
    if error:
        raise error[0]
    return result[0]
