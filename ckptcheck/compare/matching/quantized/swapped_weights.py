"""Finds quantized weights that hold the values of another tensor: gate for up, one expert for another.

A few hundred numbers suffice: the dequantized numbers have a cosine near 1 with the dense tensor they were quantized from, and
about 0 with any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ckptcheck.compare.bridge.family_table import NAME_NUMBER
from ckptcheck.compare.bridge.tensor_layout import TensorLayout
from ckptcheck.compare.matching.name_groups import name_template
from ckptcheck.compare.matching.pairing import TensorPair
from ckptcheck.compare.matching.quantized.distance import OTHER_WEIGHT_COSINE
from ckptcheck.compare.matching.quantized.weight import QuantizedWeight
from ckptcheck.compare.matching.tensor_files import TensorFiles, UnreadableFile
from ckptcheck.linter.evidence import remembered
from ckptcheck.text.formatting import join_truncated

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.compare.matching.comparison import Comparison

MAX_WEIGHTS = 512
"""Weights that are examined, and dense tensors with which each is compared."""
ROWS, COLUMNS = 4, 128
"""Rows and columns of each that are compared, at most."""
MATCH_COSINE = 0.9
"""Cosine from which a weight holds a tensor: rounding to 4 bits leaves 0.99, unrelated tensors have about 0."""
SWAPS = {"gate_proj": "up_proj", "up_proj": "gate_proj", "w1": "w3", "w3": "w1"}


@remembered
def find_swapped_weights(comparison: Comparison) -> dict[str, str]:
    """Return weight → the other tensor whose values it holds."""
    quantized = comparison.value_differences.quantized
    pairs_by_shape: dict[tuple[int, ...], list[TensorPair]] = {}
    for pair, _, _ in quantized:
        pairs_by_shape.setdefault(pair.first.shape, []).append(pair)
    wrong = [pair for pair, distance, came_first in quantized if distance.is_mismatch(came_first=came_first)]
    with TensorFiles(comparison.first.source) as ours, TensorFiles(comparison.second.source) as theirs:
        return _find_matches(wrong[:MAX_WEIGHTS], pairs_by_shape, ours, theirs)


def _find_matches(
    wrong: list[TensorPair],
    pairs_by_shape: Mapping[tuple[int, ...], list[TensorPair]],
    ours: TensorFiles,
    theirs: TensorFiles,
) -> dict[str, str]:
    import numpy as np

    swaps: dict[str, str] = {}
    dense: dict[str, NDArray[np.float32]] = {}
    for pair in wrong:
        candidates = sorted(pairs_by_shape[pair.first.shape], key=lambda other: _rank(pair.name, other.name))[
            :MAX_WEIGHTS
        ]
        try:
            own = _sample(pair, ours, theirs, quantized=True)
            for other in candidates:
                if other.name not in dense:
                    dense[other.name] = _sample(other, ours, theirs, quantized=False)
        except (UnreadableFile, ValueError, IndexError):
            continue
        cosines = np.stack([dense[other.name] for other in candidates]) @ own
        best = candidates[int(cosines.argmax())]
        own_cosine = next(cosine for other, cosine in zip(candidates, cosines, strict=True) if other.name == pair.name)
        if best.name != pair.name and cosines.max() >= MATCH_COSINE and own_cosine < OTHER_WEIGHT_COSINE:
            swaps[pair.name] = best.name
    return swaps


def describe_swaps(swaps: Mapping[str, str]) -> str:
    """Describe in one clause which weights hold the values of other tensors. swaps: weight → other tensor."""
    swapped = [name for name, other in swaps.items() if _partner_name(name) == other]
    moved: dict[str, dict[str, str]] = {}
    rest = []
    for name, other in swaps.items():
        if name in swapped:
            continue
        numbers = [
            (of, to)
            for of, to in zip(NAME_NUMBER.finditer(name), NAME_NUMBER.finditer(other), strict=False)
            if of[0] != to[0]
        ]
        if name_template(name) == name_template(other) and len(numbers) == 1:
            of, to = numbers[0]
            word = name[: of.start() - 1].rpartition(".")[2].removesuffix("s")
            moved.setdefault(word, {})[f"{of[0]} is {to[0]}"] = name
        else:
            rest.append(f"{name} is {other}")
    clauses = ["gate and up are swapped"] if swapped else []
    clauses += [f"{word}s are in other places: {join_truncated(list(places))}" for word, places in moved.items()]
    return "; ".join([*clauses, *([join_truncated(rest)] if rest else [])])


def _partner_name(name: str) -> str:
    """Return the name of the other half of a gated projection; "" if there is none."""
    words = name.split(".")
    at = next((number for number, word in enumerate(words) if word in SWAPS), None)
    return ".".join([*words[:at], SWAPS[words[at]], *words[at + 1 :]]) if at is not None else ""


def _rank(name: str, other: str) -> tuple[int, ...]:
    """Sort key: the tensor itself, the other half, one that differs only in numbers, any other; then by distance of the numbers."""
    numbers = zip(NAME_NUMBER.findall(name), NAME_NUMBER.findall(other), strict=False)
    is_alike = name_template(name) == name_template(other)
    distances = (abs(int(of) - int(to)) for of, to in numbers)
    return name != other, _partner_name(name) != other, not is_alike, *distances


def _sample(pair: TensorPair, ours: TensorFiles, theirs: TensorFiles, *, quantized: bool) -> NDArray[np.float32]:
    """Return some numbers of one side as a unit vector. Raises UnreadableFile, ValueError, IndexError."""
    import numpy as np

    side, files = (pair.first, ours) if isinstance(pair.first, QuantizedWeight) == quantized else (pair.second, theirs)
    begin = side.shape[0] // 2
    end = min(side.shape[0], begin + ROWS)
    if isinstance(side, QuantizedWeight):
        # Scales may be any number.
        with np.errstate(all="ignore"):
            rows = side.dequantize_rows(files, begin, end).values
    else:
        assert isinstance(side, TensorLayout)
        rows = files.read_numbers(side.cut(0, begin, end))
    sample = np.nan_to_num(rows[:, :: -(-side.shape[1] // COLUMNS)].reshape(-1), posinf=0, neginf=0)
    length = float(np.linalg.norm(sample))
    return sample / np.float32(length or 1)
