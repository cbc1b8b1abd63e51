"""The cases of rules about two checkpoints: what is done to either, and the comparison of the two."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.equality import Tolerance
from ckptcheck.compare.matching.open_side import open_side
from tests.factories.case_table import StrictTable
from tests.factories.checkpoint_cases import CHECKPOINTS, CheckpointChanges, Tensors, edit_tensors, write_checkpoint

WIDTH = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class ComparisonTerms(StrictTable, kw_only=True):
    """How the two checkpoints are compared, see `Tolerance`."""

    cast: str = "auto"
    rtol: float = 0.0
    atol: float = 0.0
    critic: bool = False
    """Whether the second is a critic that starts from the first."""


class ComparisonCase(CheckpointChanges, kw_only=True):
    """A case of a rule on two checkpoints: what makes the second of the first."""

    against: str = ""
    """A folder of fixtures/checkpoints to compare this one with; empty for the base as it was."""
    before: Tensors = {}
    """Changes as in `tensors`, made to the checkpoint that this one is compared with."""
    recast: dict[str, str] = {}
    """Tensor → the dtype to cast it to."""
    row: dict[str, str] = {}
    """Tensor → another tensor whose first row it gets."""
    diff: ComparisonTerms = msgspec.field(default_factory=ComparisonTerms)


def build_comparison(table: Mapping[str, Any], folder: Path) -> Comparison:
    """Build both sides of a case and compare them: the first is the base (or `against`), the second what the case makes of it."""
    case = msgspec.convert(table, ComparisonCase)
    first = Path(shutil.copytree(CHECKPOINTS / (case.against or case.base), folder / "first"))
    for name, changes in table.get("before", {}).items():
        edit_tensors(first / name, changes)
    second = folder / "second"
    write_checkpoint(table, second)
    for path in sorted(second.glob("*.safetensors")):
        tensors = read_bytes(path)
        for name, dtype in case.recast.items():
            if name in tensors:
                tensors[name] = cast_tensor(*tensors[name], dtype)
        for name, other in case.row.items():
            if name in tensors:
                tensors[name] = tensors[name][0], read_bytes(first / path.name)[other][1][: len(tensors[name][1])]
        write_bytes(path, tensors, {name: tuple(entry["shape"]) for name, entry in read_header(path).items()})
    tolerance = Tolerance(case.diff.cast, case.diff.rtol, case.diff.atol)
    return Comparison(open_side(str(first)), open_side(str(second)), tolerance, case.diff.critic)


def read_header(path: Path) -> dict[str, Any]:
    """The entries of a safetensors file."""
    raw = path.read_bytes()
    entries = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    entries.pop("__metadata__", None)
    return entries


def read_bytes(path: Path) -> dict[str, tuple[str, bytes]]:
    """Name → dtype and bytes."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    return {
        name: (entry["dtype"], raw[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]])
        for name, entry in read_header(path).items()
    }


def write_bytes(path: Path, tensors: dict[str, tuple[str, bytes]], shapes: dict[str, tuple[int, ...]]) -> None:
    """Write a safetensors file of any dtypes."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, data) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shapes[name], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, data in tensors.values()))


def cast_tensor(dtype: str, data: bytes, target: str) -> tuple[str, bytes]:
    """Cast F32 to another dtype."""
    values = np.frombuffer(data, WIDTH[dtype])
    if target != "BF16":
        return target, values.astype(WIDTH[target]).tobytes()
    bits = values.view(np.uint32).astype(np.uint64)
    return target, ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()
