"""Lists the tensors of a PyTorch .bin file, and the globals that its pickles name, without executing anything in it.

A torch.save file is a zip whose ``data.pkl`` is a pickle; before PyTorch 1.6 it was a row of pickles. A pickle is a program:
`unpickle` reads it with stubs. Where that refuses the pickle, its opcodes are only listed. Format: torch/serialization.py.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # most checkpoints hold no pickle, so what reads one is imported where one is read
    from ckptcheck.checkpoint.source import Source
    from ckptcheck.checkpoint.torch_archive import Read

SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
"""How files are named that may hold pickles."""
WEIGHTS = re.compile(r"(pytorch_|adapter_|consolidated|value_head|v_head|model)[\w.-]*\.(bin|pt|pth|ckpt)")
"""Files that hold nothing but tensors. Others, training_args.bin say, hold objects of a trainer's classes too."""
MAX_LISTED = 1 << 24
"""Bytes of a pickle whose opcodes are listed where `unpickle` refuses it."""
MAX_PICKLES = 8
"""Pickles in a row that are listed: torch.save wrote five before version 1.6."""

_HARMLESS = frozenset(
    (
        ("_codecs", "encode"),
        ("builtins", "dict"),
        ("builtins", "frozenset"),
        ("builtins", "list"),
        ("builtins", "object"),
        ("builtins", "range"),
        ("builtins", "tuple"),
        ("builtins", "bytearray"),
        ("collections", "Counter"),
        ("collections", "OrderedDict"),
        ("collections", "defaultdict"),
        ("collections", "deque"),
        ("copyreg", "_reconstructor"),
        ("datetime", "date"),
        ("datetime", "timezone"),
        ("decimal", "Decimal"),
        ("enum", "auto"),
        ("fractions", "Fraction"),
        ("functools", "partial"),
        ("logging", "Logger"),
        ("logging", "getLogger"),
        ("pathlib", "Path"),
        ("pathlib", "WindowsPath"),
        ("random", "Random"),
        ("threading", "Lock"),
        ("uuid", "UUID"),
    )
)
"""What objects of Python's own library are made of."""
_LOADERS = re.compile(
    r"torch\.(load|hub\.\w+|jit\.\w+|serialization\.load|package\.\w+|utils\.cpp_extension\.\w+|ops\.load_library)$"
    r"|numpy\.(load|testing\.|f2py\.|ctypeslib\.)|(joblib|dill|cloudpickle)\b|pip\b|setuptools\b"
)
"""Functions of other libraries that run code or load further files."""


@dataclass(frozen=True)
class TorchBin:
    """What a file of pickles holds."""

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Each top-level tensor, or each one of its ``state_dict``, with its shape."""
    foreign_globals: tuple[str, ...] = ()
    """The globals that its pickles name and a state dict does not need, in order."""
    unreadable_reason: str | None = None
    """Why the tensors could not be listed, as the end of a sentence."""


def read_torch_bin(source: Source, name: str) -> TorchBin | None:
    """Describe a file; None where it holds no pickle at all. Raises OSError from reading."""
    return describe_pickles(lambda start, length: source.read(name, start, length), source.files[name].size)


def describe_pickles(read: Read, size: int) -> TorchBin | None:
    """Describe `size` bytes; None where they hold no pickle at all. Raises OSError from reading."""
    from ckptcheck.checkpoint.megatron.stubs import load_persistent, stub_for
    from ckptcheck.checkpoint.torch_archive import UnreadableArchive, open_archive
    from ckptcheck.checkpoint.unpickle import UnreadablePickle, unpickle

    start = read(0, 4)
    if start.startswith(b"PK\x03\x04"):
        try:
            archive = open_archive(read, size)
        except UnreadableArchive as error:
            return TorchBin(unreadable_reason=str(error))
        try:
            value, foreign = archive.describe(stub_for, load_persistent)
        except UnreadableArchive as error:
            return TorchBin({}, _list_foreign(archive.pickle[:MAX_LISTED]), str(error))
        return _describe_state(value, foreign)
    raw = read(0, min(size, MAX_LISTED))
    try:
        unpickled = unpickle(raw, stub_for)
    except UnreadablePickle:
        foreign = _list_foreign(raw)
        if foreign or start[:1] == b"\x80":
            return TorchBin({}, foreign, "it is not in the zip format of torch.save")
        return None
    return _describe_state(unpickled.value, unpickled.unexpected_globals)


def is_dangerous(name: str) -> bool:
    """Whether a global, such as ``os.system``, runs code or reaches beyond the program that loads it.

    That is every function of Python's own library but those that plain objects are made of, and what loads further code.

    >>> is_dangerous("os.system"), is_dangerous("builtins.set"), is_dangerous("trl.trainer.GRPOConfig")
    (True, False, False)
    """
    from ckptcheck.checkpoint.megatron.stubs import ORDINARY

    module, _, function = name.rpartition(".")
    if module.partition(".")[0] in sys.stdlib_module_names or module == "__builtin__":
        return (module.replace("__builtin__", "builtins"), function) not in _HARMLESS | ORDINARY
    return bool(_LOADERS.match(name))


def _describe_state(value: object, foreign: tuple[str, ...]) -> TorchBin:
    from ckptcheck.checkpoint.megatron.stubs import StoredTensor

    if isinstance(value, dict) and isinstance(value.get("state_dict"), dict):
        value = value["state_dict"]
    if not isinstance(value, dict):
        return TorchBin({}, foreign, "it holds no state dict")
    shapes = {name: part.shape for name, part in value.items() if type(name) is str and isinstance(part, StoredTensor)}
    return TorchBin(shapes, foreign)


def _list_foreign(raw: bytes) -> tuple[str, ...]:
    """List the globals that a row of pickles names and a state dict does not need, as far as its opcodes can be read."""
    from ckptcheck.checkpoint.megatron.stubs import stub_for

    return tuple(dict.fromkeys(f"{module}.{name}" for module, name in _list_globals(raw) if not stub_for(module, name)))


def _list_globals(raw: bytes) -> Iterator[tuple[str, str]]:
    """Yield module and name of each global. STACK_GLOBAL takes them from the stack: the last two texts put there."""
    import pickletools

    stream = io.BytesIO(raw)
    for _ in range(MAX_PICKLES):
        texts: list[str] = []
        memo: dict[int, str | None] = {}
        top: str | None = None  # the text on top of the stack
        try:
            for op, argument, _at in pickletools.genops(stream):
                if op.name in ("GLOBAL", "INST"):
                    module, _, name = str(argument).partition(" ")
                    yield module, name
                    top = None
                elif op.name == "STACK_GLOBAL":
                    if len(texts) > 1:
                        yield texts[-2], texts[-1]
                    top = None
                elif op.name == "MEMOIZE" or "PUT" in op.name:
                    memo[argument if isinstance(argument, int) else len(memo)] = top
                elif op.name == "POP":
                    del texts[-1:]
                else:
                    top = memo.get(argument) if "GET" in op.name and isinstance(argument, int) else None
                    top = argument if isinstance(argument, str) else top
                    texts = [*texts[-7:], top] if top is not None else texts
        except Exception:  # a hostile pickle may raise anything at all; what was listed until then counts
            return
