"""What the least and the greatest value of a tensor tell: NaN, infinite, all zero, multiplied by a power of two."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import Any

Range = tuple[float, float]
"""The least and the greatest value; both NaN where any is."""
EXACT = 0.01
"""How far the logarithm (base 2) of a ratio may be from a whole number: a cast to bfloat16 moves it by 0.006."""
STEADY, STEPS = 1.07, 3
"""A tensor whose range moves by less than this factor for so many looks does not double by training. One that begins at zero does:
Adam moves each of its values by the learning rate at first."""
TINY = 2.0**-24
"""The least number of float16, in which less is zero."""
ZERO, SCALED = "all zero", "multiplied by"


class Ranges:
    """The ranges of tensors by name. Those of a GPU stay there until `fetch`, so that no tensor waits for it."""

    def __init__(self) -> None:
        self._ends: dict[str, tuple[Any, Any]] = {}

    def add(self, name: str, tensor: Any) -> None:
        """Add a torch tensor of numbers with a point, of two bytes or more: torch has no aminmax of others. Others are left out."""
        is_read = hasattr(tensor, "data_ptr") and tensor.is_floating_point() and tensor.itemsize > 1
        if not is_read or not tensor.numel() or tensor.device.type == "meta":
            return
        # a packed type, or a rare device, may have none either
        with suppress(RuntimeError, NotImplementedError, TypeError, AttributeError):
            self._ends[name] = tuple(tensor.detach().aminmax())

    def fetch(self) -> dict[str, Range]:
        """Return name → range. It waits once for each device and dtype."""
        found: dict[str, Range] = {}
        kinds = {(ends[0].device, ends[0].dtype) for ends in self._ends.values()}
        for kind in kinds:
            import torch

            own = {name: ends for name, ends in self._ends.items() if (ends[0].device, ends[0].dtype) == kind}
            flat = torch.stack([end for ends in own.values() for end in ends]).tolist()
            found.update(zip(own, zip(flat[::2], flat[1::2], strict=True), strict=True))
        return found


def find_odd(sent: Mapping[str, Range], known: MutableMapping[str, tuple[float, float, int]]) -> dict[str, str]:
    """Return the name of each tensor that is sent with values that are wrong by themselves → how.

    known: name → the range that was sent before, and for how many looks it has been steady; changed to the new ones.
    """
    odd: dict[str, str] = {}
    for name, values in sent.items():
        before = known.get(name)
        if before is not None and _is_near(values, before):
            known[name] = (*values, before[2] + 1)
            continue
        reference, looks = (None, 0) if before is None else (before[:2], before[2])
        word = describe_range(values, reference)
        if word and not (word.startswith(SCALED) and looks < STEPS):
            odd[name] = word
        if word == ZERO:
            continue  # it stays so as long as it is zero
        known[name] = (*values, 0)
    return odd


def _is_near(values: Range, before: tuple[float, float, int]) -> bool:
    """Whether both ends are finite, and have moved by less than `STEADY`. It is asked for each tensor of each sync."""
    return all(
        math.isfinite(after) and (after == old or (old != 0 and 1 / STEADY < after / old < STEADY))
        for after, old in zip(values, before[:2], strict=True)
    )


def describe_range(values: Range, reference: Range | None = None) -> str:
    """Return what is wrong with a range, in the words of `describe_difference`; "" for nothing.

    reference: what it should be about, None where nobody knows it.
    """
    if any(map(math.isnan, values)):
        return "NaN"
    if any(map(math.isinf, values)):
        return "infinite"
    if reference is None or not all(map(math.isfinite, reference)) or max(map(abs, reference)) < TINY:
        return ""
    if not any(values):
        return ZERO
    logs = _compare(values, reference)
    power = round(logs[0]) if logs else 0
    return f"{SCALED} {2.0**power:g}" if logs and power and all(abs(each - power) < EXACT for each in logs) else ""


def _compare(values: Range, reference: Range) -> list[float] | None:
    """Return the logarithms of the ratios of both ends; None where they have other signs."""
    pairs = [pair for pair in zip(values, reference, strict=True) if any(pair)]
    if not pairs or any(not math.isfinite(a / b if b else math.inf) or not b or a / b <= 0 for a, b in pairs):
        return None
    return [math.log2(a / b) for a, b in pairs]
