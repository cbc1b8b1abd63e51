"""The cases of rules about two checkpoints: what is done to either, and the comparison of the two."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from cases import CHECKPOINTS, build, edit_tensors

from ckptcheck.comparison.comparison import Comparison
from ckptcheck.comparison.open import open_side
from ckptcheck.comparison.terms import Terms

WIDTH = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def comparison(table: dict[str, Any], folder: Path) -> Comparison:
    """Build both sides of a case and compare them: the first is the base (or `against`), the second what the case makes of it."""
    first = Path(shutil.copytree(CHECKPOINTS / table.get("against", table["base"]), folder / "first"))
    for name, changes in table.get("before", {}).items():
        edit_tensors(first / name, changes)
    second = build(table, folder / "second")
    for path in sorted(second.glob("*.safetensors")):
        tensors = read(path)
        for name, dtype in table.get("recast", {}).items():
            if name in tensors:
                tensors[name] = recast(*tensors[name], dtype)
        for name, other in table.get("row", {}).items():
            if name in tensors:
                tensors[name] = tensors[name][0], read(first / path.name)[other][1][: len(tensors[name][1])]
        write(path, tensors, {name: tuple(entry["shape"]) for name, entry in header(path).items()})
    how = table.get("diff", {})
    terms = Terms(how.get("cast", "auto"), how.get("rtol", 0.0), how.get("atol", 0.0))
    return Comparison(open_side(str(first)), open_side(str(second)), terms, how.get("critic", False))


def header(path: Path) -> dict[str, Any]:
    """The entries of a safetensors file."""
    raw = path.read_bytes()
    entries = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    entries.pop("__metadata__", None)
    return entries


def read(path: Path) -> dict[str, tuple[str, bytes]]:
    """Name → dtype and bytes."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    return {
        name: (entry["dtype"], raw[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]])
        for name, entry in header(path).items()
    }


def write(path: Path, tensors: dict[str, tuple[str, bytes]], shapes: dict[str, tuple[int, ...]]) -> None:
    """Write a safetensors file of any dtypes."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, data) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shapes[name], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, data in tensors.values()))


def recast(dtype: str, data: bytes, target: str) -> tuple[str, bytes]:
    """Cast F32 to another dtype."""
    values = np.frombuffer(data, WIDTH[dtype])
    if target != "BF16":
        return target, values.astype(WIDTH[target]).tobytes()
    bits = values.view(np.uint32).astype(np.uint64)
    return target, ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()
