"""Asks mbridge, if it is installed, how it maps Megatron's tensors, and compares that with the built-in tables."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ckptcheck.compare.bridge.family_table import NAME_NUMBER, FamilyTable, TableEntry, split_tensor
from ckptcheck.compare.bridge.megatron_names import FUSED_NORMS
from ckptcheck.compare.bridge.model_dimensions import ModelDimensions
from ckptcheck.compare.bridge.splitters import SplitFunction
from ckptcheck.compare.bridge.tensor_layout import LayoutError, TensorLayout, concatenate
from ckptcheck.errors import CkptcheckError
from ckptcheck.runners.child_python import run_python

TIMEOUT_SECONDS = 300.0
"""Importing torch, Megatron and mbridge takes ten seconds."""
EXPERT = re.compile(r"(.{1,400}\.mlp\.experts)\.local_experts\.([0-9]+)\.(linear_fc[12])\.(weight|bias)")
LAYER = re.compile(r"decoder\.layers\.([0-9]+)\.(.+)")
MTP_TENSORS = ("enorm.", "hnorm.", "eh_proj.", "final_layernorm.")

RowRuns = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class MbridgeMapping:
    """The mapping that mbridge uses for a set of tensors."""

    # Version of mbridge.
    version: str
    # Name in Megatron's normal form → Hugging Face names; None if mbridge knows none.
    targets: Mapping[str, tuple[str, ...] | None]
    # One name of each kind → for each target the runs [begin, end) of rows it takes; None if it does not take whole rows.
    rows: Mapping[str, tuple[RowRuns | None, ...]]


def find_mbridge_python() -> str | None:
    """Return a Python that has mbridge: this one, or that of the megatron environment; None if neither has it."""
    if importlib.util.find_spec("mbridge") is not None:
        return sys.executable
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ckptcheck" / "engines" / "megatron"
    is_installed = any(cache.glob("lib/python*/site-packages/mbridge/__init__.py"))
    return str(cache / "bin" / "python") if is_installed else None


def query_mbridge(python: str, config: Path, tensors: Mapping[str, TensorLayout], layers: int | None) -> MbridgeMapping:
    """Ask mbridge for its mapping of these tensors. Raises CkptcheckError if it gives none.

    Args:
        python: an interpreter that has mbridge.
        config: the folder of config.json.
        tensors: name in Megatron's normal form → layout.
        layers: number of layers before those of multi-token prediction.
    """
    samples: dict[str, str] = {}
    for name in tensors:
        numbers = NAME_NUMBER.findall(name)
        # Equal numbers could not be distinguished in the answer.
        if len(set(numbers)) == len(numbers):
            samples.setdefault(NAME_NUMBER.sub("{}", name), name)
    question = {
        "config": os.path.abspath(config),
        "names": {name: candidate_names(name, layers) for name in tensors},
        "samples": {name: tensors[name].shape for name in samples.values() if tensors[name].shape},
    }
    child = Path(__file__).with_name("mbridge_child.py")
    try:
        result = run_python(
            [str(child)],
            None if python == sys.executable else Path(python),
            input=json.dumps(question),
            text=True,
            timeout=TIMEOUT_SECONDS,
            cwd=child.parent,
            env={"HF_HUB_OFFLINE": "1"},
        )
        answer = json.loads(result.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise CkptcheckError(f"mbridge gave no answer: {error}") from error
    if "error" in answer:
        raise CkptcheckError(f"mbridge cannot map this model: {answer['error']}")
    return MbridgeMapping(
        answer["version"],
        {name: tuple(targets) if targets is not None else None for name, targets in answer["targets"].items()},
        {
            name: tuple(tuple(map(tuple, runs)) if runs is not None else None for runs in each)
            for name, each in answer["rows"].items()
        },
    )


def candidate_names(name: str, layers: int | None) -> list[str]:
    """Return the names under which mbridge may know a weight, those of Transformer Engine first."""
    layer = LAYER.fullmatch(name)
    if layer and layers is not None and int(layer[1]) >= layers:
        inner = "" if layer[2].startswith(MTP_TENSORS) else "transformer_layer."
        name = f"mtp.layers.{int(layer[1]) - layers}.{inner}{layer[2]}"
    if expert := EXPERT.fullmatch(name):
        return [f"{expert[1]}.{expert[3]}.{expert[4]}{expert[2]}"]
    fused = [name.replace(plain, engine) for engine, plain in FUSED_NORMS.items() if plain in name]
    return [*fused, name]


def build_family_table(opinion: MbridgeMapping) -> FamilyTable:
    """Convert the mapping to a family table."""
    entries = {}
    for name, rows in opinion.rows.items():
        targets = opinion.targets[name]
        if targets is None or None in rows or len(targets) != len(rows):
            continue
        numbers = NAME_NUMBER.findall(name)
        targets_by_number = tuple(_template(target, numbers) for target in targets)
        entries[NAME_NUMBER.sub("{}", name)] = TableEntry(
            targets_by_number, _take_rows([runs for runs in rows if runs is not None])
        )
    return FamilyTable(entries)


def _template(target: str, numbers: list[str]) -> str:
    """Replace the numbers of a target by the positions at which the stored name has them."""
    return NAME_NUMBER.sub(lambda match: f"{{{numbers.index(match[0])}}}" if match[0] in numbers else match[0], target)


def _take_rows(rows: list[RowRuns]) -> SplitFunction:
    """Return a split function that takes these runs of rows."""

    def split(layout: TensorLayout, dimensions: ModelDimensions) -> list[TensorLayout]:
        return [concatenate(layout.cut(0, begin, end) for begin, end in runs) for runs in rows]

    return split


def find_disagreements(
    opinion: MbridgeMapping, table: FamilyTable, tensors: Mapping[str, TensorLayout], dimensions: ModelDimensions
) -> tuple[dict[str, str], list[str]]:
    """Return name → how mbridge and the table disagree about it, and the names that mbridge does not know."""
    disagreements: dict[str, str] = {}
    unknown: list[str] = []
    for name, targets in opinion.targets.items():
        layout = tensors[name]
        plain = TensorLayout.contiguous(layout.dtype, 1, layout.shape, "", 0)
        try:
            ours = split_tensor(table.megatron, name, plain, dimensions)
        except LayoutError:
            # CMP003 reports it.
            continue
        if targets is None:
            unknown.append(name)
        elif ours is None:
            disagreements[name] = f"the built-in table does not list it, mbridge maps it to {', '.join(targets)}"
        elif set(ours) != set(targets):
            disagreements[name] = f"the built-in table maps it to {', '.join(ours)}, mbridge to {', '.join(targets)}"
        elif name in opinion.rows:
            for target, runs in zip(targets, opinion.rows[name], strict=False):
                if runs != (own := _rows_of(ours[target])):
                    disagreements[name] = (
                        f"for {target} the built-in table takes rows {own[:3]}, mbridge {(runs or ())[:3]}"
                    )
                    break
    return disagreements, unknown


def _rows_of(part: TensorLayout) -> RowRuns:
    """Return the runs of rows that a part takes from a tensor with one byte per element."""
    runs: list[tuple[int, int]] = []
    for chunk in part.chunks:
        begin = chunk.offset // (chunk.strides[0] if chunk.strides else 1)
        end = begin + (chunk.shape[0] if chunk.shape else 1)
        if runs and runs[-1][1] == begin:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((begin, end))
    return tuple(runs)
