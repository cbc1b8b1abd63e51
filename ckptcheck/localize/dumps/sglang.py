"""Reads SGLang's two dumps of activations (0.5.23, srt/debug_utils).

dumper.py: a file for each tensor, ``step=0___rank=0___dump_index=7___name=non_intrusive__model.layers.0.mlp.output___….pt``, that
holds {"value": tensor, "meta": …}. tensor_dump_forward_hook.py (``--debug-tensor-dump-output-folder``): a folder for each rank,
``TP0_PP0_Rank0_pid7``, with ``Pass00000.pt``: module name → what it gave out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ckptcheck.checkpoint.torch_file import read_torch

PREFIX = "non_intrusive__"
NUMBERS = ("step", "rank", "dump_index")
RANK = re.compile(r"TP(\d+)_PP(\d+)_Rank(\d+)_pid\d+")


def read(folder: Path) -> list[dict[str, Any]]:
    """Return, rank by rank, module name → output and ``module:in`` → first input; [] for another folder.

    Of several steps or passes the first that has a layer is read: before it engines warm up on tokens of their own.
    """
    return _passes(folder) or _tensors(folder)


def _passes(folder: Path) -> list[dict[str, Any]]:
    places = [folder, *(path for path in folder.iterdir() if path.is_dir())]
    ranks = sorted((int(match[3]), path) for path in places if (match := RANK.fullmatch(path.name)))
    found = []
    for _, path in ranks:
        for file in sorted(path.glob("Pass*.pt")):
            held = read_torch(file)
            if isinstance(held, dict) and any(".layers." in str(name) for name in held):
                found.append({str(name): _first(value) for name, value in held.items()})
                break
    return found


def _tensors(folder: Path) -> list[dict[str, Any]]:
    ranks: dict[int, dict[str, Any]] = {}
    steps: dict[int, int] = {}
    told = [(path, tags) for path in folder.rglob("*.pt") if (tags := _tags(path)).get("name") and _numbered(tags)]
    for path, tags in sorted(told, key=lambda each: [int(each[1][number]) for number in NUMBERS]):
        name, rank, step = tags["name"].removeprefix(PREFIX), int(tags["rank"]), int(tags["step"])
        if steps.setdefault(rank, step) != step:
            continue
        held = read_torch(path)
        value = held.get("value") if isinstance(held, dict) else held
        key = name.removesuffix(".output") if name.endswith(".output") else re.sub(r"\.inputs\.[^.]+$", ":in", name)
        ranks.setdefault(rank, {}).setdefault(key, _first(value))
    return [ranks[rank] for rank in sorted(ranks)]


def _numbered(tags: dict[str, str]) -> bool:
    return all(tags.get(number, "").isdecimal() for number in NUMBERS)


def _tags(path: Path) -> dict[str, str]:
    return dict(part.split("=", 1) for part in path.stem.split("___") if "=" in part)


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) and value else value
