"""A second opinion on names and layouts: mbridge, where it is installed. Two mappings that agree are evidence."""

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

from ckptcheck.bridge.area import Area, LayoutError, joined
from ckptcheck.bridge.geometry import Geometry
from ckptcheck.bridge.layouts import Cut
from ckptcheck.bridge.megatron_names import FUSED_NORMS
from ckptcheck.bridge.table import NUMBER, Entry, Table, parts
from ckptcheck.errors import CkptcheckError

PATIENCE = 300.0
"""Seconds; importing torch, Megatron and mbridge takes ten."""
EXPERT = re.compile(r"(.+\.mlp\.experts)\.local_experts\.([0-9]+)\.(linear_fc[12])\.(weight|bias)")
LAYER = re.compile(r"decoder\.layers\.([0-9]+)\.(.+)")
OF_PREDICTION = ("enorm.", "hnorm.", "eh_proj.", "final_layernorm.")

Runs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Opinion:
    """version: of mbridge. targets: name in the normal form → Hugging Face names, None where mbridge knows none.

    rows: one name of each kind → for each target the runs of rows it takes, None where rows are not taken whole.
    """

    version: str
    targets: Mapping[str, tuple[str, ...] | None]
    rows: Mapping[str, tuple[Runs | None, ...]]


def interpreter() -> str | None:
    """Return a Python that has mbridge: this one, or that of the megatron environment; None where neither has."""
    if importlib.util.find_spec("mbridge") is not None:
        return sys.executable
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ckptcheck" / "engines" / "megatron"
    found = any(cache.glob("lib/python*/site-packages/mbridge/__init__.py"))
    return str(cache / "bin" / "python") if found else None


def ask(python: str, config: Path, tensors: Mapping[str, Area], layers: int | None) -> Opinion:
    """Ask for the mapping of these tensors. config: the folder of config.json. Raises CkptcheckError where there is no answer."""
    samples: dict[str, str] = {}
    for name in tensors:
        numbers = NUMBER.findall(name)
        if len(set(numbers)) == len(numbers):  # equal numbers could not be told apart in the answer
            samples.setdefault(NUMBER.sub("{}", name), name)
    question = {
        "config": str(config),
        "names": {name: candidates(name, layers) for name in tensors},
        "samples": {name: tensors[name].shape for name in samples.values() if tensors[name].shape},
    }
    child = Path(__file__).with_name("mbridge_child.py")
    try:
        result = subprocess.run(
            [python, str(child)],
            input=json.dumps(question),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        found = json.loads(result.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise CkptcheckError(f"mbridge gave no answer: {error}") from error
    if "error" in found:
        raise CkptcheckError(f"mbridge cannot map this model: {found['error']}")
    return Opinion(
        found["version"],
        {name: tuple(targets) if targets is not None else None for name, targets in found["targets"].items()},
        {
            name: tuple(tuple(map(tuple, runs)) if runs is not None else None for runs in each)
            for name, each in found["rows"].items()
        },
    )


def candidates(name: str, layers: int | None) -> list[str]:
    """Return the names that mbridge may know a weight by: those of Transformer Engine first."""
    layer = LAYER.fullmatch(name)
    if layer and layers is not None and int(layer[1]) >= layers:
        inner = "" if layer[2].startswith(OF_PREDICTION) else "transformer_layer."
        name = f"mtp.layers.{int(layer[1]) - layers}.{inner}{layer[2]}"
    if expert := EXPERT.fullmatch(name):
        return [f"{expert[1]}.{expert[3]}.{expert[4]}{expert[2]}"]
    fused = [name.replace(plain, engine) for engine, plain in FUSED_NORMS.items() if plain in name]
    return [*fused, name]


def table_from(opinion: Opinion) -> Table:
    """Return the mapping as a table."""
    entries = {}
    for name, rows in opinion.rows.items():
        targets = opinion.targets[name]
        if targets is None or None in rows or len(targets) != len(rows):
            continue
        numbers = NUMBER.findall(name)
        written = tuple(_template(target, numbers) for target in targets)
        entries[NUMBER.sub("{}", name)] = Entry(written, _taking([runs for runs in rows if runs is not None]))
    return Table(entries)


def _template(target: str, numbers: list[str]) -> str:
    """Write a target with the places of the name's numbers in place of the numbers."""
    return NUMBER.sub(lambda found: f"{{{numbers.index(found[0])}}}" if found[0] in numbers else found[0], target)


def _taking(rows: list[Runs]) -> Cut:
    """Return a layout that takes these runs of rows."""

    def cut(area: Area, geometry: Geometry) -> list[Area]:
        return [joined(area.cut(0, begin, end) for begin, end in runs) for runs in rows]

    return cut


def disagreements(
    opinion: Opinion, table: Table, tensors: Mapping[str, Area], geometry: Geometry
) -> tuple[dict[str, str], list[str]]:
    """Return name → how mbridge and a table disagree about it, and the names that mbridge does not know."""
    found: dict[str, str] = {}
    unknown: list[str] = []
    for name, targets in opinion.targets.items():
        area = tensors[name]
        plain = Area.whole(area.dtype, 1, area.shape, "", 0)
        try:
            ours = parts(table.megatron, name, plain, geometry)
        except LayoutError:
            continue  # CMP003 says so
        if targets is None:
            unknown.append(name)
        elif ours is None:
            found[name] = f"the built-in table does not know it, mbridge maps it to {', '.join(targets)}"
        elif set(ours) != set(targets):
            found[name] = f"the built-in table maps it to {', '.join(ours)}, mbridge to {', '.join(targets)}"
        elif name in opinion.rows:
            for target, runs in zip(targets, opinion.rows[name], strict=False):
                if runs != (own := _rows_of(ours[target])):
                    found[name] = f"for {target} the built-in table takes rows {own[:3]}, mbridge {(runs or ())[:3]}"
                    break
    return found, unknown


def _rows_of(part: Area) -> Runs:
    """Return the runs of rows that a part takes of a tensor of one byte an element."""
    runs: list[tuple[int, int]] = []
    for chunk in part.chunks:
        begin = chunk.offset // (chunk.strides[0] if chunk.strides else 1)
        end = begin + (chunk.shape[0] if chunk.shape else 1)
        if runs and runs[-1][1] == begin:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((begin, end))
    return tuple(runs)
