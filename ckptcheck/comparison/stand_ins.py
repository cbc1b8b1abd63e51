"""Quantized weights that stand for another tensor than the one of their name: gate for up, an expert for an expert.

A few hundred numbers tell tensors apart: what a weight stands for points the way of the dense tensor it was made of, and has
nothing to do with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ckptcheck.bridge.area import Area
from ckptcheck.bridge.table import NUMBER
from ckptcheck.comparison.matching import Pair
from ckptcheck.comparison.naming import template
from ckptcheck.comparison.nearness import ALIKE
from ckptcheck.comparison.packed import Packed
from ckptcheck.comparison.reading import Files, Unreadable
from ckptcheck.phrase import few
from ckptcheck.values.dtypes import decode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.comparison.comparison import Comparison

MOST = 512
"""Weights that are looked at, and dense tensors that each may stand for."""
ROWS, COLUMNS = 4, 128
"""Numbers of each that are compared, at most."""
SURE = 0.9
"""Cosine from which a weight stands for a tensor: rounding to 4 bits leaves 0.99, unrelated tensors have about 0."""
SWAPS = {"gate_proj": "up_proj", "up_proj": "gate_proj", "w1": "w3", "w3": "w1"}


def stand_ins(comparison: Comparison) -> dict[str, str]:
    """Return weight → the tensor for which it stands, of those that do not stand for their own."""
    near = comparison.findings.near
    alike: dict[tuple[int, ...], list[Pair]] = {}
    for pair, _, _ in near:
        alike.setdefault(pair.first.shape, []).append(pair)
    wrong = [pair for pair, seen, came_first in near if seen.is_wrong(came_first=came_first)]
    with Files(comparison.first.source) as ours, Files(comparison.second.source) as theirs:
        return _found(wrong[:MOST], alike, ours, theirs)


def _found(
    wrong: list[Pair], alike: Mapping[tuple[int, ...], list[Pair]], ours: Files, theirs: Files
) -> dict[str, str]:
    import numpy as np

    found: dict[str, str] = {}
    dense: dict[str, NDArray[np.float32]] = {}
    for pair in wrong:
        near = sorted(alike[pair.first.shape], key=lambda other: _distance(pair.name, other.name))[:MOST]
        try:
            own = _sample(pair, ours, theirs, quantized=True)
            for other in near:
                if other.name not in dense:
                    dense[other.name] = _sample(other, ours, theirs, quantized=False)
        except (Unreadable, ValueError, IndexError):
            continue
        cosines = np.stack([dense[other.name] for other in near]) @ own
        best = near[int(cosines.argmax())]
        itself = next(cosine for other, cosine in zip(near, cosines, strict=True) if other.name == pair.name)
        if best.name != pair.name and cosines.max() >= SURE and itself < ALIKE:
            found[pair.name] = best.name
    return found


def told(found: Mapping[str, str]) -> str:
    """Say in one clause which weights stand for which tensors."""
    swapped = [name for name, other in found.items() if _swapped(name) == other]
    moved: dict[str, dict[str, str]] = {}
    rest = []
    for name, other in found.items():
        if name in swapped:
            continue
        numbers = [
            (of, to) for of, to in zip(NUMBER.finditer(name), NUMBER.finditer(other), strict=False) if of[0] != to[0]
        ]
        if template(name) == template(other) and len(numbers) == 1:
            of, to = numbers[0]
            word = name[: of.start() - 1].rpartition(".")[2].removesuffix("s")
            moved.setdefault(word, {})[f"{of[0]} is {to[0]}"] = name
        else:
            rest.append(f"{name} is {other}")
    said = ["gate and up are swapped"] if swapped else []
    said += [f"{word}s are in other places: {few(list(places))}" for word, places in moved.items()]
    return "; ".join([*said, *([few(rest)] if rest else [])])


def _swapped(name: str) -> str:
    """Return the name of the other half of a gated projection, "" where there is none."""
    words = name.split(".")
    at = next((number for number, word in enumerate(words) if word in SWAPS), None)
    return ".".join([*words[:at], SWAPS[words[at]], *words[at + 1 :]]) if at is not None else ""


def _distance(name: str, other: str) -> tuple[int, ...]:
    """How unlikely it is that one was taken for the other: itself, the other half, one of the same name, any."""
    kind = 0 if name == other else 1 if _swapped(name) == other else 2 if template(name) == template(other) else 3
    numbers = zip(NUMBER.findall(name), NUMBER.findall(other), strict=False)
    return kind, *(abs(int(of) - int(to)) for of, to in numbers)


def _sample(pair: Pair, ours: Files, theirs: Files, *, quantized: bool) -> NDArray[np.float32]:
    """Return some numbers of one side, as a vector of length 1. Raises Unreadable, ValueError, IndexError."""
    import numpy as np

    side, files = (pair.first, ours) if isinstance(pair.first, Packed) == quantized else (pair.second, theirs)
    begin = side.shape[0] // 2
    end = min(side.shape[0], begin + ROWS)
    if isinstance(side, Packed):
        with np.errstate(all="ignore"):  # scales may be anything
            rows = side.rows(files, begin, end).values
    else:
        assert isinstance(side, Area)
        rows = decode(side.dtype, files.whole(side.cut(0, begin, end))).astype(np.float32)
    sample = np.nan_to_num(rows[:, :: -(-side.shape[1] // COLUMNS)].reshape(-1), posinf=0, neginf=0)
    length = float(np.linalg.norm(sample))
    return sample / np.float32(length or 1)
