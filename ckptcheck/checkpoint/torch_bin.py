"""Lists the tensors of a PyTorch .bin file without torch and without executing anything in it.

A torch.save file is a zip whose ``data.pkl`` is a pickle. A pickle is a program; this reader runs it on an unpickler that
knows a handful of constructors and refuses every other name. Format: torch/serialization.py, torch/_utils.py.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from typing import Any

MAX_PICKLE = 1 << 27
"""Longest data.pkl that is read, in uncompressed bytes; this limit stops a zip bomb."""


class UnreadablePickle(Exception):
    """The file is no torch.save zip, or its pickle names a global that a state dict does not need."""


def _tensor(storage: Any, offset: int, size: tuple[int, ...], *_: Any) -> tuple[int, ...]:
    return tuple(size)


def _parameter(data: Any, *_: Any) -> Any:
    return data


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_tensor"): _tensor,
            ("torch._utils", "_rebuild_parameter"): _parameter,
        }
        if (module, name) in known:
            return known[module, name]
        if module == "torch" and (name.endswith("Storage") or name in DTYPES):
            return name
        raise UnreadablePickle(f"it asks for {module}.{name}, which a list of tensors does not need")

    def persistent_load(self, pid: Any) -> Any:
        return None


DTYPES = frozenset(["float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool"])


def read_tensor_shapes(file: io.BufferedIOBase) -> dict[str, tuple[int, ...]]:
    """Map each top-level tensor of a torch.save file (or of its ``state_dict``) to its shape.

    Raises UnreadablePickle with the reason for any other file, and OSError from reading.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            pickles = [name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl"]
            if len(pickles) != 1:
                raise UnreadablePickle("it holds no data.pkl")
            if archive.getinfo(pickles[0]).file_size > MAX_PICKLE:
                raise UnreadablePickle("its data.pkl is too long")
            with archive.open(pickles[0]) as member:
                raw = member.read(MAX_PICKLE)
        value = _Reader(io.BytesIO(raw)).load()
    except UnreadablePickle:
        raise
    except OSError:
        raise
    except Exception as error:  # a hostile pickle or zip may raise anything at all
        raise UnreadablePickle(f"it is no torch.save file ({type(error).__name__})") from error
    if isinstance(value, dict) and isinstance(value.get("state_dict"), dict):
        value = value["state_dict"]
    if not isinstance(value, dict):
        raise UnreadablePickle("it holds no state dict")
    return {name: shape for name, shape in value.items() if isinstance(name, str) and isinstance(shape, tuple)}
