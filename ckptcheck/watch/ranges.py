"""What the least and the greatest value of a tensor tell: NaN, Inf, all zero, scaled by a power of two."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping

Range = tuple[float, float]
"""The least and the greatest value; both NaN where any is."""
EXACT = 0.01
"""How far the logarithm (base 2) of a ratio may be from a whole number: a cast to bfloat16 moves it by 0.006."""
STEADY, STEPS = 0.1, 3
"""A tensor whose range moves by less than this logarithm for so many looks does not double by training. One that begins at zero
does: Adam moves each of its values by the learning rate at first."""


def find_odd(
    sent: Mapping[str, Range], held: Mapping[str, Range], known: MutableMapping[str, tuple[float, float, int]]
) -> dict[str, str]:
    """Return ``sent/name`` or ``held/rank/name`` of each tensor whose values are wrong by themselves → how.

    A tensor that the engine holds as it was sent is named once, as sent.

    Args:
        sent: the ranges of what was sent.
        held: ``rank/name`` → the ranges of what the engine holds.
        known: name → the range that was sent before, and for how many looks it has been steady; changed to the new ones.
    """
    odd: dict[str, str] = {}
    for name, values in sent.items():
        before = known.get(name)
        reference = None if before is None else before[:2]
        word = _describe(values, reference, scaled=before is not None and before[2] >= STEPS)
        if word:
            odd[f"sent/{name}"] = word
        if word == "all zero":
            continue  # it stays so as long as it is zero
        steady = before is not None and max(map(abs, _compare(values, before[:2]) or (1.0,))) < STEADY
        known[name] = (*values, before[2] + 1 if steady and before is not None else 0)
    for place, values in held.items():
        name = place.partition("/")[2]
        word = _describe(values, sent.get(name), scaled=True)
        if word and word != odd.get(f"sent/{name}"):
            odd[f"held/{place}"] = word
    return odd


def _describe(values: Range, reference: Range | None, *, scaled: bool) -> str:
    """Return what is wrong with a range, "" for nothing. reference: what it should be about; scaled: exactly."""
    if any(map(math.isnan, values)):
        return "NaN"
    if any(map(math.isinf, values)):
        return "Inf"
    if reference is None or not all(map(math.isfinite, reference)) or not any(reference):
        return ""
    if not any(values):
        return "all zero"
    logs = _compare(values, reference) if scaled else None
    power = round(logs[0]) if logs else 0
    return f"times {2.0**power:g}" if logs and power and all(abs(each - power) < EXACT for each in logs) else ""


def _compare(values: Range, reference: Range) -> list[float] | None:
    """Return the logarithms of the ratios of both ends; None where they have other signs."""
    pairs = [pair for pair in zip(values, reference, strict=True) if any(pair)]
    if not pairs or any(not math.isfinite(a / b if b else math.inf) or not b or a / b <= 0 for a, b in pairs):
        return None
    return [math.log2(a / b) for a, b in pairs]
