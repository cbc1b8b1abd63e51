"""Reads the two kinds of activation dumps of SGLang (0.5.23, srt/debug_utils).

dumper.py: a file for each tensor, ``step=0___rank=0___dump_index=7___name=non_intrusive__model.layers.0.mlp.output___….pt``, that
holds {"value": tensor, "meta": …}. tensor_dump_forward_hook.py (``--debug-tensor-dump-output-folder``): a folder for each rank,
``TP0_PP0_Rank0_pid7``, with ``Pass00000.pt``: module name → its output.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ckptcheck.checkpoint.torch_file import read_torch_file
from ckptcheck.live.localize.dumps.rank import RankDump

PREFIX = "non_intrusive__"
NUMBERS = ("step", "rank", "dump_index")
RANK = re.compile(r"TP(\d+)_PP(\d+)_Rank(\d+)_pid\d+")


def read(folder: Path) -> list[RankDump]:
    """Return the dump of each rank; [] for another folder.

    Of several steps or passes it reads the first that has a layer: engines warm up on tokens of their own before it.
    """
    return _read_passes(folder) or _read_tensors(folder)


def _read_passes(folder: Path) -> list[RankDump]:
    """Read the dump of --debug-tensor-dump-output-folder; [] without one."""
    folders = [folder, *(path for path in folder.iterdir() if path.is_dir())]
    matches = [(path, match) for path in folders if (match := RANK.fullmatch(path.name))]
    rank_folders = sorted((int(match[3]), path) for path, match in matches)
    size = len({match[1] for _, match in matches})
    outputs_by_rank = []
    for rank, path in rank_folders:
        for file in sorted(path.glob("Pass*.pt")):
            outputs = read_torch_file(file)
            if isinstance(outputs, dict) and any(".layers." in str(name) for name in outputs):
                tensors = {str(name): _first_value(value) for name, value in outputs.items()}
                outputs_by_rank.append(RankDump(f"rank {rank}", tensors, size))
                break
    return outputs_by_rank


def _read_tensors(folder: Path) -> list[RankDump]:
    """Read the dump of dumper.py; [] without one."""
    ranks: dict[int, dict[str, Any]] = {}
    steps: dict[int, int] = {}
    tagged_files = [
        (path, tags) for path in folder.rglob("*.pt") if (tags := _parse_tags(path)).get("name") and _has_numbers(tags)
    ]
    for path, tags in sorted(tagged_files, key=lambda tagged_file: [int(tagged_file[1][number]) for number in NUMBERS]):
        name, rank, step = tags["name"].removeprefix(PREFIX), int(tags["rank"]), int(tags["step"])
        if steps.setdefault(rank, step) != step:
            continue
        content = read_torch_file(path)
        value = content.get("value") if isinstance(content, dict) else content
        key = name.removesuffix(".output") if name.endswith(".output") else re.sub(r"\.inputs\.[^.]+$", ":in", name)
        ranks.setdefault(rank, {}).setdefault(key, _first_value(value))
    return [RankDump(f"rank {rank}", ranks[rank]) for rank in sorted(ranks)]


def _has_numbers(tags: dict[str, str]) -> bool:
    """Return whether the tags number the step, the rank and the tensor."""
    return all(tags.get(number, "").isdecimal() for number in NUMBERS)


def _parse_tags(path: Path) -> dict[str, str]:
    """Return the ``tag=value`` parts of a file name."""
    return dict(part.split("=", 1) for part in path.stem.split("___") if "=" in part)


def _first_value(value: Any) -> Any:
    """Return the first item of a list or tuple, any other value as it is."""
    return value[0] if isinstance(value, (list, tuple)) and value else value
