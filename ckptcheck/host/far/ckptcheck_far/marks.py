"""Marks: values that no trained weight has, told by tensor and element, so that what an update leaves out is recognised.

Floats of 16 bits and more get ±2^12 … 2^16 with 7 bits of mantissa, which float16, bfloat16 and float32 all hold exactly,
so a mark survives a cast between them. Integers and floats of 8 bits have no unusual values; there only runs count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

PIECE = {"cpu": 31 << 10, "": 1 << 22}
"""Elements that are marked at once, by kind of device; on CPU below what torch gives to several threads (see digest.py)."""
RANGES = 8
"""How many runs of marks are told."""
RUN = {1: 6, 2: 3}
"""Bytes of a dtype → how many neighbours have to hold their marks before they count; chance would make single ones."""


def seed(rank: int, name: str) -> int:
    """Return the number that tells a tensor's marks from those of another."""
    return int.from_bytes(hashlib.sha256(f"{rank}/{name}".encode()).digest()[:7], "big")


def marks(number: int, begin: int, end: int, dtype: Any, device: Any) -> Any:
    """Return the marks of the flat elements [begin, end) of the tensor with that seed."""
    import torch

    mixed = (torch.arange(begin, end, dtype=torch.int64, device=device) + number) * -7046029254386353131
    mixed = (mixed ^ (mixed >> 29)) * -4658895280553007687
    mixed ^= mixed >> 32
    if dtype.is_floating_point and dtype.itemsize > 1:
        value = (128 + (mixed & 127)).to(torch.float32) * (1 << 5)
        value = torch.where((mixed >> 7 & 1).bool(), value * 2, value)
        value = torch.where((mixed >> 8 & 1).bool(), value * 4, value)
        return torch.where((mixed >> 9 & 1).bool(), -value, value).to(dtype)
    if dtype.itemsize == 1:
        mixed &= 0xBF  # without the highest bit of the exponent: no NaN and no infinity in any float of 8 bits
        return mixed.to(torch.uint8).view(dtype)
    return mixed.to(dtype)


def why_not(tensor: Any) -> str:
    """Say why a tensor cannot be marked, "" where it can."""
    import torch

    if tensor.device.type == "meta":
        return "it is on the meta device"
    if not tensor.numel():
        return "it is empty"
    if tensor.dtype in (torch.bool, torch.complex64, torch.complex128):
        return f"no value of {str(tensor.dtype)[6:]} is unusual"
    return ""


def scramble(tensor: Any, number: int) -> None:
    """Overwrite every element with its mark."""
    import torch

    with torch.inference_mode():
        target = tensor.detach()
        plain = target.is_contiguous()
        flat = target.view(-1) if plain else torch.empty(target.numel(), dtype=target.dtype, device=target.device)
        for begin, end in _pieces(flat):
            flat[begin:end] = marks(number, begin, end, flat.dtype, flat.device)
        if not plain:
            target.copy_(flat.view(target.shape))


def left(tensor: Any, number: int) -> tuple[int, list[tuple[int, int]]]:
    """Return how many elements hold their mark, and the first runs of them as [begin, end)."""
    import torch

    with torch.inference_mode():
        flat = tensor.detach().reshape(-1)
        integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
        same = torch.zeros(flat.numel(), dtype=torch.bool, device=flat.device)
        for begin, end in _pieces(flat):
            expected = marks(number, begin, end, flat.dtype, flat.device)
            same[begin:end] = flat[begin:end].view(integer) == expected.view(integer)
        return runs(
            same, RUN.get(flat.element_size(), 1) if not flat.is_floating_point() or flat.element_size() == 1 else 1
        )


def blank(tensor: Any) -> tuple[int, list[tuple[int, int]]]:
    """Return how many elements are NaN, and the first runs: what `filled` memory holds until it is written."""
    import torch

    with torch.inference_mode():
        flat = tensor.detach().reshape(-1)
        if not flat.is_floating_point() or flat.element_size() == 1:
            return 0, []
        if not bool(flat.sum().isnan()):  # a sum is NaN where an element is, and is quick
            return 0, []
        return runs(flat != flat, 1)


def _pieces(flat: Any) -> Iterator[tuple[int, int]]:
    step = PIECE.get(flat.device.type, PIECE[""])
    for begin in range(0, flat.numel(), step):
        yield begin, min(begin + step, flat.numel())


def runs(flags: Any, least: int) -> tuple[int, list[tuple[int, int]]]:
    """Return how many flags are set in runs of at least so many, and the first of those runs."""
    import torch

    if not bool(flags.any()):
        return 0, []
    edge = torch.zeros(1, dtype=torch.int8, device=flags.device)
    steps = torch.diff(torch.cat([edge, flags.to(torch.int8), edge]))
    begins, ends = (steps == 1).nonzero().view(-1), (steps == -1).nonzero().view(-1)
    long = ends - begins >= least
    begins, ends = begins[long], ends[long]
    first = [(int(begin), int(end)) for begin, end in zip(begins[:RANGES].tolist(), ends[:RANGES].tolist())]
    return int((ends - begins).sum()), first
