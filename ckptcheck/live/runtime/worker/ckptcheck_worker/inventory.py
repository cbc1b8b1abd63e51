"""Reads and changes the tensors of one rank where they live: the same for every engine whose model consists of torch modules.

Each function takes the tensors as `tensors.walk` yields them, and returns plain data.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable
from typing import Any

from . import sentinels, tensor_files, tensors
from .shard_digest import digests, sum_shard

Tensors = Iterable[tuple[str, str, Any, str]]
"""(name, kind, tensor, why its numbers cannot be read or "")."""
DRAFT = "draft"
"""Prefix of the names of a draft model's tensors."""
DIGEST = 5
"""Position of the digest in an entry."""


def digest_tensors(rank: int, model_tensors: Tensors, with_digests: bool = True) -> dict[str, Any]:
    """Return [name, kind, dtype, shape, bytes, digest, storage, opaque] of every tensor; digests are "" unless asked for."""
    entries: list[list[Any]] = []
    # tensors that share memory share the digest of the first
    owners: dict[Any, int] = {}
    digested: list[Any] = []
    for name, kind, tensor, opaque in model_tensors:
        storage = tensors.storage_id(tensor)
        if not hasattr(tensor, "shape"):
            entries.append([name, kind, "", [], 0, "", storage, opaque])
            continue
        opaque = "it is on the meta device: it holds no numbers" if tensor.device.type == "meta" else opaque
        nbytes, shape = tensor.numel() * tensor.element_size(), list(tensor.shape)
        entries.append([name, kind, tensors.dtype_name(tensor), shape, nbytes, "", storage, opaque])
        if with_digests and not opaque:
            view = (storage or len(entries), tuple(shape), tensor.stride(), tensor.dtype)
            entries[-1][DIGEST] = owners.setdefault(view, len(digested))
            if owners[view] == len(digested):
                digested.append(tensor)
    values = digests(digested)
    for entry in entries:
        if entry[DIGEST] != "":
            entry[DIGEST] = values[entry[DIGEST]]
    return {"rank": rank, "entries": entries}


def read_scalars(rank: int, scalars: Iterable[tuple[str, float]]) -> dict[str, Any]:
    """Return [name, whether it is a float, the number as text] of every number; text keeps all digits, and NaN."""
    return {"rank": rank, "entries": [[name, isinstance(value, float), repr(value)] for name, value in scalars]}


def sum_parts(model_tensors: Tensors, parts: list[list[Any]]) -> list[list[int]]:
    """Return the addition of each part to the two sums of its weight (see `shard_digest`), as signed integers.

    parts: [name of the tensor, its first flat element, shape of the part, elements from one row to the next or 0, index of the
    part's first element in the weight, shape of the weight]; parts of one tensor follow each other.
    Raises LookupError for a missing tensor.
    """
    found = {name: tensor for name, _, tensor, _ in model_tensors if hasattr(tensor, "shape")}
    sums, last = [], ""
    flat: Any = None
    for name, begin, shape, pitch, origin, whole in parts:
        if name != last:
            last, flat = name, found[name].detach().reshape(-1)
        if pitch:
            part = flat[begin : begin + shape[0] * pitch].view(shape[0], pitch)[:, : shape[1]]
        else:
            part = flat[begin : begin + math.prod(shape)].view(shape)
        sums.append(sum_shard(part, origin, whole))
    return [each.tolist() for each in sums]


def scramble_weights(
    rank: int, model_tensors: Tensors, rebuilt: Collection[str], foreign_draft: bool = False
) -> tuple[dict[str, Any], dict[str, str]]:
    """Overwrite parameters, and derived tensors whose last name is in `rebuilt`, with sentinels; shared memory once.

    foreign_draft: the trainer does not send the draft model. Returns the report, and name → the name whose sentinels the
    tensor holds, for `find_unwritten`.
    """
    scrambled: dict[str, str] = {}
    skipped: dict[str, str] = {}
    owners: dict[Any, str] = {}
    for name, kind, tensor, opaque in model_tensors:
        if kind == "buffer":
            continue
        if foreign_draft and name.startswith(DRAFT):
            skipped[name] = "the trainer does not send the draft model, so no sync is meant to write it"
            continue
        if kind == "derived" and name.rpartition(".")[2] not in rebuilt:
            skipped[name] = opaque or "nothing says that an update rebuilds it"
            continue
        reason = opaque or sentinels.unmarkable_reason(tensor)
        if reason:
            skipped[name] = reason
            continue
        owner = owners.setdefault((tensors.storage_id(tensor), tuple(tensor.shape), tensor.stride()), name)
        if owner == name:
            sentinels.scramble(tensor, sentinels.seed(rank, name))
        scrambled[name] = owner
    return {"rank": rank, "names": list(scrambled), "left": skipped}, scrambled


def find_unwritten(rank: int, model_tensors: Tensors, scrambled: dict[str, str]) -> dict[str, Any]:
    """Return [name, sentinels, elements, runs, NaNs, runs of NaNs] of the tensors that an update did not write completely."""
    entries = []
    for name, _, tensor, _ in model_tensors:
        if name not in scrambled or not hasattr(tensor, "shape") or sentinels.unmarkable_reason(tensor):
            continue
        count, ranges = sentinels.find_sentinels(tensor, sentinels.seed(rank, scrambled[name]))
        nan_count, nan_ranges = sentinels.find_nans(tensor)
        if count or nan_count:
            entries.append([name, count, tensor.numel(), ranges, nan_count, nan_ranges])
    return {"rank": rank, "entries": entries}


def fetch_tensors(rank: int, model_tensors: Tensors, names_by_rank: list[list[str]], path: str) -> dict[str, Any]:
    """Write the requested tensors of this rank to the file PATH.RANK, named RANK/NAME."""
    names = set(names_by_rank[rank])
    requested = {f"{rank}/{n}": t.detach().cpu() for n, _, t, _ in model_tensors if n in names and hasattr(t, "shape")}
    return tensor_files.write_tensors(requested, {"kind": "file", "path": f"{path}.{rank}"})


def fetch_from_ranks(
    call_ranks: Callable[[str, list[Any]], list[dict[str, Any]]], names_by_rank: list[list[str]], path: str
) -> None:
    """Have every rank write its tensors, and merge the files of all ranks into one."""
    files = call_ranks("fetch_tensors", [names_by_rank, path])
    nonempty = [file for file in files if file["tensors"]]
    if len(nonempty) == 1:  # rename the one file: no need to read it
        os.replace(nonempty.pop()["path"], path)
    else:
        merged = {name: tensor for file in nonempty for name, tensor in tensor_files.read_tensors(file).items()}
        tensor_files.write_tensors(merged, {"kind": "file", "path": path})
    for file in files:
        if os.path.exists(file["path"]):
            os.remove(file["path"])


def used_memory(device: Any) -> list[Any]:
    """Return a name of the device and its used bytes, by any process; on a CPU the result of `memory_bytes`.

    The number comes from the driver, because sleep releases memory behind torch's back (cumem of vLLM,
    torch_memory_saver of SGLang): `memory_allocated` does not move.
    """
    import torch

    if device.type != "cuda":
        return memory_bytes(device)
    free, total = torch.cuda.mem_get_info(device)
    return [str(torch.cuda.get_device_properties(device).uuid), total - free]


def memory_bytes(device: Any) -> list[int]:
    """Return the process id and the bytes that the process holds: on the device, on a CPU its resident memory."""
    import torch

    if device.type == "cuda":
        return [os.getpid(), torch.cuda.memory_allocated(device)]
    with open("/proc/self/statm", encoding="ascii") as file:
        return [os.getpid(), int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")]
