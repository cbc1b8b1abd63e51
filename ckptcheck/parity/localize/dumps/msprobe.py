"""Reads the folder of msProbe's PrecisionDebugger: ``step0/rank0/dump.json`` and ``dump_tensor_data/*.pt`` beside it.

In dump.json, ``data`` has an entry for each call, ``Module.model.layers.0.mlp.down_proj.RowParallelLinear.forward.0``, with
``input_args``, ``input_kwargs`` and ``output``: lists of inputs and outputs, each with the ``data_name`` of its file. Level L0
dumps modules; the name of the class stands after the module's own name. Source: gitcode.com/Ascend/msprobe, docs/en/dump
(PyTorch, 26.0).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ckptcheck.checkpoint.torch_file import read_torch_file
from ckptcheck.errors import CkptcheckError

CALL = re.compile(r"(?:Module|Cell)\.(?P<module>.+)\.[^.]+\.forward\.(?P<number>\d+)")
LONGEST = 1 << 28
"""Largest size in bytes of a dump.json that ckptcheck reads."""


def read(folder: Path) -> list[dict[str, Any]]:
    """Return, rank by rank, module name → output and ``module:in`` → first input of its first call; [] for another folder.

    Reads only the first of several steps. Raises CkptcheckError for a broken dump.
    """
    ranks = sorted(folder.rglob("dump.json"), key=_rank_order)
    first_step = [path for path in ranks if path.parent.parent == ranks[0].parent.parent]
    return [_read_rank(path) for path in first_step]


def _rank_order(path: Path) -> tuple[list[int], str]:
    """Return a key that sorts dump.json files by step and rank."""
    return [int(number) for number in re.findall(r"(?:step|rank)(\d+)", "/".join(path.parts[-3:-1]))], str(path)


def _read_rank(path: Path) -> dict[str, Any]:
    """Return the tensors that the dump.json of one rank names, as `read` does."""
    try:
        raw = path.read_bytes() if path.stat().st_size <= LONGEST else b""
        data = msgspec.json.decode(raw)["data"]
        calls = {str(name): call for name, call in data.items() if isinstance(call, dict)}
    except OSError as error:
        raise CkptcheckError(f"{path} cannot be read: {error.strerror or error}") from None
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError):
        raise CkptcheckError(f"{path} is no dump.json of msProbe") from None
    tensors: dict[str, Any] = {}
    for name, call in calls.items():
        match = CALL.fullmatch(name)
        if match is None or int(match["number"]):
            continue
        for key, entries in ((match["module"], call.get("output")), (f"{match['module']}:in", call.get("input_args"))):
            for file in _list_files(entries):
                tensors[key] = read_torch_file(_resolve_file(path.parent / "dump_tensor_data", file))
                break
    if calls and not tensors:
        raise CkptcheckError(
            f"{path} has statistics only, no tensors", hint="dump with task tensor and level L0, as the verl guide does"
        )
    return tensors


def _list_files(entries: Any) -> Iterator[str]:
    """Yield the file names of a list of inputs or outputs, nested lists included."""
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("data_name"), str):
            yield entry["data_name"]
        elif isinstance(entry, list):
            yield from _list_files(entry)


def _resolve_file(folder: Path, file: str) -> Path:
    """Return the path of a file in the folder. Raises CkptcheckError for a name that leads out of the folder."""
    path = folder / file
    if "/" in file or "\\" in file or path.is_symlink():
        raise CkptcheckError(f"{folder.parent / 'dump.json'} names {file!r}, which is no file beside it")
    return path
