"""What one rank of an engine holds, asked and changed where it lies: the same for every engine whose model is of torch modules.

Each function takes the tensors as `tensors.walk` yields them, and returns plain data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from typing import Any

from . import marks, plane, tensors
from .digest import digests

Tensors = Iterable[tuple[str, str, Any, str]]
"""(name, kind, tensor, why it cannot be read)."""
DRAFT = "draft"
"""What the names of a draft model's tensors begin with."""
DIGEST = 5
"""Where an entry of the manifest has its digest."""


def manifest(rank: int, held: Tensors, seen: bool = True) -> dict[str, Any]:
    """Return [name, kind, dtype, shape, bytes, digest, place, opaque] of every tensor; digests only where `seen`."""
    entries: list[list[Any]] = []
    owners: dict[Any, int] = {}  # aliases share the digest of the first
    digested: list[Any] = []
    for name, kind, tensor, opaque in held:
        where = tensors.place(tensor)
        if not hasattr(tensor, "shape"):
            entries.append([name, kind, "", [], 0, "", where, opaque])
            continue
        opaque = "it is on the meta device: it holds no numbers" if tensor.device.type == "meta" else opaque
        nbytes, shape = tensor.numel() * tensor.element_size(), list(tensor.shape)
        entries.append([name, kind, tensors.dtype_name(tensor), shape, nbytes, "", where, opaque])
        if seen and not opaque:
            same = (where or len(entries), tuple(shape), tensor.stride(), tensor.dtype)
            entries[-1][DIGEST] = owners.setdefault(same, len(digested))
            if owners[same] == len(digested):
                digested.append(tensor)
    values = digests(digested)
    for entry in entries:
        if entry[DIGEST] != "":
            entry[DIGEST] = values[entry[DIGEST]]
    return {"rank": rank, "entries": entries}


def scramble(
    rank: int, held: Tensors, rebuilt: Collection[str], foreign: bool = False
) -> tuple[dict[str, Any], dict[str, str]]:
    """Mark every parameter, and the derived tensors whose last name is in `rebuilt`; tensors that share memory once.

    foreign: a draft model has a checkpoint of its own. Returns what is to be told, and name → the name whose marks it holds,
    for `leftovers`.
    """
    done: dict[str, str] = {}
    left: dict[str, str] = {}
    owners: dict[Any, str] = {}
    for name, kind, tensor, opaque in held:
        if kind == "buffer":
            continue
        if foreign and name.startswith(DRAFT):
            left[name] = "its draft model has a checkpoint of its own, so no sync is meant to write it"
            continue
        if kind == "derived" and name.rpartition(".")[2] not in rebuilt:
            left[name] = opaque or "nothing says that an update rebuilds it"
            continue
        why = opaque or marks.why_not(tensor)
        if why:
            left[name] = why
            continue
        owner = owners.setdefault((tensors.place(tensor), tuple(tensor.shape), tensor.stride()), name)
        if owner == name:
            marks.scramble(tensor, marks.seed(rank, name))
        done[name] = owner
    return {"rank": rank, "names": list(done), "left": left}, done


def leftovers(rank: int, held: Tensors, marked: dict[str, str]) -> dict[str, Any]:
    """Return [name, marked, elements, runs, blank, runs of it] of tensors that an update did not write wholly."""
    found = []
    for name, _, tensor, _ in held:
        if name not in marked or not hasattr(tensor, "shape") or marks.why_not(tensor):
            continue
        count, ranges = marks.left(tensor, marks.seed(rank, marked[name]))
        blank, blanks = marks.blank(tensor)
        if count or blank:
            found.append([name, count, tensor.numel(), ranges, blank, blanks])
    return {"rank": rank, "entries": found}


def fetch(rank: int, held: Tensors, wanted: list[list[str]], path: str) -> dict[str, Any]:
    """Put tensors on the plane of files, named RANK/NAME. wanted: names, by rank."""
    names = set(wanted[rank])
    here = {f"{rank}/{n}": t.detach().cpu() for n, _, t, _ in held if n in names and hasattr(t, "shape")}
    return plane.put(here, {"plane": "file", "path": f"{path}.{rank}"})


def gather(ask: Callable[[str, list[Any]], list[dict[str, Any]]], wanted: list[list[str]], path: str) -> None:
    """Have every rank fetch its tensors, and put what all of them wrote into one file."""
    parts = ask("fetch", [wanted, path])
    full = [part for part in parts if part["tensors"]]
    if len(full) == 1:  # nothing has to be read again
        os.replace(full.pop()["path"], path)
    else:
        plane.put(
            {name: tensor for part in full for name, tensor in plane.get(part).items()}, {"plane": "file", "path": path}
        )
    for part in parts:
        if os.path.exists(part["path"]):
            os.remove(part["path"])


def poke(held: Tensors, name: str, index: int, bit: int) -> None:
    """Flip a bit of a flat element: a fault, to see that it is found."""
    import torch

    with torch.inference_mode():
        tensor = next(found for n, _, found, _ in held if n == name)
        size = tensor.element_size()
        flat = tensor.detach().view(-1).view(torch.uint8)
        flat[index * size + bit // 8] ^= 1 << bit % 8


def memory(device: Any) -> list[int]:
    """Return the process and the bytes that it holds: on the device, on CPU its resident memory."""
    import torch

    if device.type == "cuda":
        return [os.getpid(), torch.cuda.memory_allocated(device)]
    with open("/proc/self/statm", encoding="ascii") as file:
        return [os.getpid(), int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")]
