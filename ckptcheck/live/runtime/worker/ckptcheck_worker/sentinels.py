"""Sentinels: values that no trained weight has, different for every element, to recognise unwritten elements.

Floats of 16 bits and more get ±2^12 … 2^16 with 7 bits of mantissa, which float16, bfloat16 and float32 all hold exactly,
so a sentinel survives a cast between them. Integers and floats of 8 bits have no unusual values; there only runs count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

CHUNK = {"cpu": 31 << 10, "": 1 << 22}
"""Elements per step, by device type; on a CPU fewer than torch spreads over several threads (see digest.py)."""
MAX_RANGES = 8
"""How many runs are reported."""
MIN_RUN = {1: 6, 2: 3}
"""Bytes of a dtype → how many adjacent elements must hold their sentinels to count; single ones occur by chance."""


def seed(rank: int, name: str) -> int:
    """Return the seed of a tensor's sentinels."""
    return int.from_bytes(hashlib.sha256(f"{rank}/{name}".encode()).digest()[:7], "big")


def sentinel_values(number: int, begin: int, end: int, dtype: Any, device: Any) -> Any:
    """Return the sentinels of the flat elements [begin, end) of the tensor with that seed."""
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
        # clear the highest bit of the exponent: no NaN and no infinity in any float of 8 bits
        mixed &= 0xBF
        return mixed.to(torch.uint8).view(dtype)
    return mixed.to(dtype)


def unmarkable_reason(tensor: Any) -> str:
    """Return why a tensor can hold no sentinels; "" if it can."""
    import torch

    if tensor.device.type == "meta":
        return "it is on the meta device"
    if not tensor.numel():
        return "it is empty"
    if tensor.dtype in (torch.bool, torch.complex64, torch.complex128):
        return f"{str(tensor.dtype)[6:]} has no value that a weight could not hold"
    return ""


def scramble(tensor: Any, number: int) -> None:
    """Overwrite every element with its sentinel."""
    import torch

    with torch.inference_mode():
        target = tensor.detach()
        contiguous = target.is_contiguous()
        flat = target.view(-1) if contiguous else torch.empty(target.numel(), dtype=target.dtype, device=target.device)
        for begin, end in _chunks(flat):
            flat[begin:end] = sentinel_values(number, begin, end, flat.dtype, flat.device)
        if not contiguous:
            target.copy_(flat.view(target.shape))


def find_sentinels(tensor: Any, number: int) -> tuple[int, list[tuple[int, int]]]:
    """Return how many elements hold their sentinel, and the first runs of them as [begin, end)."""
    import torch

    with torch.inference_mode():
        flat = tensor.detach().reshape(-1)
        integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
        same = torch.zeros(flat.numel(), dtype=torch.bool, device=flat.device)
        for begin, end in _chunks(flat):
            expected = sentinel_values(number, begin, end, flat.dtype, flat.device)
            same[begin:end] = flat[begin:end].view(integer) == expected.view(integer)
        unusual = flat.is_floating_point() and flat.element_size() > 1
        return flag_runs(same, 1 if unusual else MIN_RUN.get(flat.element_size(), 1))


def find_nans(tensor: Any) -> tuple[int, list[tuple[int, int]]]:
    """Return how many elements are NaN, and the first runs of them: new memory is filled with NaN until an update writes it."""
    import torch

    with torch.inference_mode():
        flat = tensor.detach().reshape(-1)
        if not flat.is_floating_point() or flat.element_size() == 1:
            return 0, []
        # the sum is NaN if any element is, and is fast to compute
        if not bool(flat.sum().isnan()):
            return 0, []
        return flag_runs(flat != flat, 1)


def _chunks(flat: Any) -> Iterator[tuple[int, int]]:
    step = CHUNK.get(flat.device.type, CHUNK[""])
    for begin in range(0, flat.numel(), step):
        yield begin, min(begin + step, flat.numel())


def flag_runs(flags: Any, min_length: int) -> tuple[int, list[tuple[int, int]]]:
    """Return how many flags are set in runs of at least `min_length`, and the first of those runs as [begin, end)."""
    import torch

    if not bool(flags.any()):
        return 0, []
    edge = torch.zeros(1, dtype=torch.int8, device=flags.device)
    steps = torch.diff(torch.cat([edge, flags.to(torch.int8), edge]))
    begins, ends = (steps == 1).nonzero().view(-1), (steps == -1).nonzero().view(-1)
    long = ends - begins >= min_length
    begins, ends = begins[long], ends[long]
    first = [(int(begin), int(end)) for begin, end in zip(begins[:MAX_RANGES].tolist(), ends[:MAX_RANGES].tolist())]
    return int((ends - begins).sum()), first
