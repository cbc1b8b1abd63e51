"""Reads activation dumps of two tools.

SGLang (0.5.23, srt/debug_utils) has two kinds. dumper.py: a file for each tensor,
``step=0___rank=0___dump_index=7___name=non_intrusive__model.layers.0.mlp.output___….pt``, that holds {"value": tensor, "meta": …}.
tensor_dump_forward_hook.py (``--debug-tensor-dump-output-folder``): a folder for each rank, ``TP0_PP0_Rank0_pid7``, with
``Pass00000.pt``: module name → its output.

msProbe's PrecisionDebugger writes ``step0/rank0/dump.json`` and ``dump_tensor_data/*.pt`` beside it. In dump.json, ``data`` has an
entry for each call, ``Module.model.layers.0.mlp.down_proj.RowParallelLinear.forward.0``, with ``input_args``, ``input_kwargs`` and
``output``: lists of inputs and outputs, each with the ``data_name`` of its file. Level L0 dumps modules; the name of the class
stands after the module's own name. A process without a rank writes ``proc<pid>`` in place of ``rank0``; a list of models
(Megatron's chunks of layers) puts the model's place in the list before each name. Under verl, msProbe leaves out the first and the
last module of a model. Source: gitcode.com/Ascend/msprobe, docs/en/dump (PyTorch, 26.0),
pytorch/dump/module_dump/module_processor.py (26.2).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ckptcheck.checkpoint.torch_file import read_torch_file
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.localize.dumps.rank import RankDump
from ckptcheck.text.file_io import read_whole_file

CALL = re.compile(r"(?:Module|Cell)\.(?P<module>.+)\.(?P<kind>[^.]+)\.forward\.(?P<number>\d+)")
PASSING = ("IdentityOp", "IdentityFuncOp", "Identity")
"""Classes whose module returns its input: Megatron has one if Transformer Engine fuses the norm into the projection."""
IDS = {"input_ids": "ids", "position_ids": "positions", "positions": "positions"}
"""Names of a module's arguments → the kind of their tensors."""
LONGEST = 1 << 28
"""Largest size in bytes of a dump.json that ckptcheck reads."""
PREFIX = "non_intrusive__"
NUMBERS = ("step", "rank", "dump_index")
RANK = re.compile(r"TP(\d+)_PP(\d+)_Rank(\d+)_pid\d+")


def read_msprobe(folder: Path) -> list[RankDump]:
    """Return each rank's dump of the first step and the first call of each module; [] for another folder.

    Raises CkptcheckError for a broken dump.
    """
    ranks = sorted(folder.rglob("dump.json"), key=_rank_order)
    first_step = [path for path in ranks if path.parent.parent == ranks[0].parent.parent]
    return [_read_rank(path, index) for index, path in enumerate(first_step)]


def _rank_order(path: Path) -> tuple[list[int], str]:
    """Return a key that sorts dump.json files by step and rank."""
    return [int(number) for number in re.findall(r"(?:step|rank)(\d+)", "/".join(path.parts[-3:-1]))], str(path)


def _read_rank(path: Path, index: int) -> RankDump:
    """Return the tensors that the dump.json of one rank names. index: its place among the ranks."""
    try:
        raw = read_whole_file(path, LONGEST) if path.is_file() else b""
        data = msgspec.json.decode(raw)["data"]
        calls = {str(name): call for name, call in data.items() if isinstance(call, dict)}
    except OSError as error:
        raise CkptcheckError(f"{path} cannot be read: {error.strerror or error}") from None
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError, UnicodeError, RecursionError):
        raise CkptcheckError(f"{path} is no dump.json of msProbe") from None
    tensors: dict[str, Any] = {}
    later_calls = 0
    for name, call in calls.items():
        match = CALL.fullmatch(name)
        if match is None or match["kind"] in PASSING:
            continue
        later_calls = max(later_calls, int(match["number"]))
        if int(match["number"]):
            continue
        for key, file in _list_tensors(match["module"], call):
            tensors[key] = read_torch_file(_resolve_file(path.parent / "dump_tensor_data", file))
    if calls and not tensors:
        raise CkptcheckError(
            f"{path} has statistics only, no tensors", hint="dump with task tensor and level L0, as the verl guide does"
        )
    match = re.fullmatch(r"rank(\d+)", path.parent.name)
    return RankDump(f"rank {match[1] if match else index}", tensors, later_calls=later_calls)


def _list_tensors(module: str, call: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (key of `RankDump.tensors`, file) for the tensors of a call that ckptcheck reads."""
    arguments, keywords = call.get("input_args"), call.get("input_kwargs")
    keywords = keywords if isinstance(keywords, dict) else {}
    if file := next(_list_files(call.get("output")), None):
        yield module, file
    if file := next(_list_files(arguments), None) or next(_list_files(keywords.get("hidden_states")), None):
        yield f"{module}:in", file
    for name, meaning in IDS.items():
        if file := next(_list_files(keywords.get(name)), None):
            yield f"{module}:{meaning}", file
    if "rotary" in module and (file := next(_list_files(arguments, of_type="torch.int"), None)):
        # vLLM gives the positions first, transformers second
        yield f"{module}:positions", file


def _list_files(entries: Any, of_type: str = "") -> Iterator[str]:
    """Yield the file names of an input or output, or of a list or dictionary of them. of_type: how their dtype begins."""
    if isinstance(entries, dict) and isinstance(entries.get("data_name"), str):
        if str(entries.get("dtype", "")).startswith(of_type):
            yield entries["data_name"]
    elif isinstance(entries, (list, dict)):
        for entry in entries.values() if isinstance(entries, dict) else entries:
            if isinstance(entry, (list, dict)):
                yield from _list_files(entry, of_type)


def _resolve_file(folder: Path, file: str) -> Path:
    """Return the path of a file in the folder. Raises CkptcheckError for a name that leads out of the folder."""
    path = folder / file
    if "/" in file or "\\" in file or path.is_symlink():
        raise CkptcheckError(f"{folder.parent / 'dump.json'} names {file!r}, which is no file beside it")
    return path


def read_sglang(folder: Path) -> list[RankDump]:
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
