"""Lists the tensors of a PyTorch .bin file, and the globals that its pickles name, without executing anything in it.

A torch.save file is a zip whose ``data.pkl`` is a pickle; before PyTorch 1.6 it was a row of pickles. A pickle is a program:
`unpickle` reads it with stubs. If that refuses the pickle, this module only lists its opcodes. Format: torch/serialization.py.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:  # most checkpoints hold no pickle, so functions import its readers when they meet one
    from ckptcheck.checkpoint.source import Source
    from ckptcheck.checkpoint.torch_archive import Read

SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
"""Suffixes of files that may hold pickles."""
WEIGHTS = re.compile(r"(pytorch_|adapter_|consolidated|value_head|v_head|model)[\w.-]*\.(bin|pt|pth|ckpt)")
"""Files that hold only tensors. Others, such as training_args.bin, also hold objects of a trainer's classes."""
MAX_LISTED = 1 << 24
"""Most bytes of a pickle whose opcodes are listed after `unpickle` refuses it."""
MAX_PICKLES = 8
"""Most pickles in a row that are listed: torch.save wrote five before version 1.6."""
MAX_OPCODES = 1 << 20
"""Most opcodes that are listed: half a second. A state dict of 100,000 tensors in the format before 1.6 has three times as many."""
MAX_NAMES, MAX_NAME = 1 << 10, 1 << 9
"""Most globals that are listed, and the longest module or name: a short pickle can put many long ones together."""

_HARMLESS = {
    "_codecs": {"encode"},
    "builtins": {"bytearray", "dict", "frozenset", "list", "object", "range", "tuple"},
    "collections": {"Counter", "OrderedDict", "defaultdict", "deque"},
    "copyreg": {"_reconstructor"},
    "datetime": {"date", "timezone"},
    "decimal": {"Decimal"},
    "enum": {"auto"},
    "fractions": {"Fraction"},
    "functools": {"partial"},
    "logging": {"Logger", "getLogger"},
    "pathlib": {"Path", "WindowsPath"},
    "random": {"Random"},
    "threading": {"Lock"},
    "uuid": {"UUID"},
}
"""Module of Python's own library → its globals that construct plain objects."""
_LOADERS = re.compile(
    r"torch\.(load|hub\.\w+|jit\.\w+|serialization\.load|package\.\w+|utils\.cpp_extension\.\w+|ops\.load_library)$"
    r"|numpy\.(load|testing\.|f2py\.|ctypeslib\.)|(joblib|dill|cloudpickle)\b|pip\b|setuptools\b"
)
"""Functions of other libraries that run code or load further files."""


class TorchBin(msgspec.Struct, frozen=True):
    """What a file of pickles holds."""

    shapes: Mapping[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """Each tensor at the top level, or in its ``state_dict``, with its shape."""
    foreign_globals: tuple[str, ...] = ()
    """The globals in its pickles that a state dict does not need, in order."""
    unreadable_reason: str | None = None
    """Why the tensors could not be listed, as the end of a sentence."""
    is_listed: bool = True
    """Whether `foreign_globals` has every global that a loader would meet, as far as the pickles can be followed."""


def read_torch_bin(source: Source, name: str) -> TorchBin | None:
    """Describe a file; None where it holds no pickle at all. Raises OSError from reading."""
    return describe_pickles(lambda start, length: source.read(name, start, length), source.files[name].size)


def describe_pickles(read: Read, size: int) -> TorchBin | None:
    """Describe `size` bytes; None where they hold no pickle at all. Raises OSError from reading."""
    from ckptcheck.checkpoint.megatron.stubs import load_persistent, stub_for
    from ckptcheck.checkpoint.torch_archive import UnreadableArchive, open_archive, read_pickles
    from ckptcheck.checkpoint.unpickle import UnreadablePickle, unpickle

    start = read(0, 4)
    if start.startswith(b"PK\x03\x04"):
        try:
            value, foreign = open_archive(read, size).describe(stub_for, load_persistent)
        except UnreadableArchive as error:
            # PyTorch's reader also takes forms that torch.save never writes: compressed records, duplicate names.
            pickles, is_whole = read_pickles(read, size, MAX_LISTED)
            listing = _Listing()
            for pickled in pickles:
                listing.add(pickled)
            return TorchBin({}, listing.foreign_globals, str(error), is_whole and listing.is_whole)
        return _describe_state(value, foreign)
    raw = read(0, min(size, MAX_LISTED))
    try:
        unpickled = unpickle(raw, stub_for)
    except UnreadablePickle:
        listing = _Listing()
        listing.add(raw)
        if listing.foreign_globals or start[:1] == b"\x80":
            reason = "it is not in the zip format of torch.save"
            return TorchBin({}, listing.foreign_globals, reason, listing.is_whole)
        return None
    return _describe_state(unpickled.value, unpickled.unexpected_globals)


def is_dangerous(name: str) -> bool:
    """Whether a global, such as ``os.system``, runs code or reaches beyond the program that loads it.

    These are all functions of Python's own library, except the ones that construct plain objects, and functions of other
    libraries that load further code.

    >>> is_dangerous("os.system"), is_dangerous("builtins.set"), is_dangerous("trl.trainer.GRPOConfig")
    (True, False, False)
    """
    from ckptcheck.checkpoint.megatron.stubs import ORDINARY

    module, _, function = name.rpartition(".")
    if module.partition(".")[0] in sys.stdlib_module_names or module == "__builtin__":
        module = module.replace("__builtin__", "builtins")
        return function not in _HARMLESS.get(module, ()) and (module, function) not in ORDINARY
    return bool(_LOADERS.match(name))


def _describe_state(value: object, foreign: tuple[str, ...]) -> TorchBin:
    from ckptcheck.checkpoint.megatron.stubs import StoredTensor

    if isinstance(value, dict) and isinstance(value.get("state_dict"), dict):
        value = value["state_dict"]
    if not isinstance(value, dict):
        return TorchBin({}, foreign, "it holds no state dict")
    shapes = {name: part.shape for name, part in value.items() if type(name) is str and isinstance(part, StoredTensor)}
    return TorchBin(shapes, foreign)


class _Listing:
    """The globals in rows of pickles that a state dict does not need, as far as the opcodes can be read."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._left = MAX_OPCODES
        self.is_whole = True
        """Whether no limit ended it."""

    @property
    def foreign_globals(self) -> tuple[str, ...]:
        return tuple(self._names)

    def add(self, raw: bytes) -> None:
        """List the globals of a row of pickles."""
        import pickletools

        stream = io.BytesIO(raw)
        for _ in range(MAX_PICKLES):
            try:
                self._list(pickletools.genops(stream))
            except Exception:  # a hostile pickle may raise anything at all; keep what was listed before
                break
        self.is_whole = self.is_whole and len(raw) < MAX_LISTED

    def _list(self, opcodes: Iterable[Any]) -> None:
        """List the globals of a pickle. STACK_GLOBAL takes its module and name from the stack: the last two texts pushed."""
        texts: list[str] = []
        memo: dict[int, str] = {}
        memoized = 0
        top: str | None = None  # the text on top of the stack
        for op, argument, _at in opcodes:
            self._left -= 1
            if self._left < 0 or len(self._names) >= MAX_NAMES:
                self.is_whole = False
                return
            if op.name in ("GLOBAL", "INST"):
                module, _, name = str(argument).partition(" ")
                self._note(module, name)
                top = None
            elif op.name == "STACK_GLOBAL":
                if len(texts) > 1:
                    self._note(texts[-2], texts[-1])
                top = None
            elif op.name == "MEMOIZE" or "PUT" in op.name:
                place = argument if isinstance(argument, int) else memoized
                memoized += 1
                if top is not None:
                    memo[place] = top
                else:
                    memo.pop(place, None)
            elif op.name == "POP":
                del texts[-1:]
            else:
                top = memo.get(argument) if "GET" in op.name and isinstance(argument, int) else None
                top = argument if isinstance(argument, str) else top
                texts = [*texts[-7:], top] if top is not None else texts

    def _note(self, module: str, name: str) -> None:
        from ckptcheck.checkpoint.megatron.stubs import stub_for

        if not stub_for(module, name):
            self._names[f"{module[:MAX_NAME]}.{name[:MAX_NAME]}"] = None
