"""Value heads: where a critic keeps one, and whether it is a row of a language model's head."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ckptcheck.bridge.hf_names import renamed
from ckptcheck.comparison.matching import is_score
from ckptcheck.comparison.side import Side

if TYPE_CHECKING:
    from ckptcheck.comparison.comparison import Comparison


def heads(seen: Comparison) -> list[tuple[Side, str]]:
    """Return the weights of value heads, with their side."""
    return [
        (side, name)
        for side in (seen.first, seen.second)
        for name in side.stored
        if name.endswith(".weight") and is_score(renamed(name))
    ]


def is_first_row(side: Side, name: str, other: Side) -> bool:
    """Whether a value head of one side is the first row of the other's LM head. Raises Unreadable."""
    from ckptcheck.comparison.reading import Files

    own = side.stored[name]
    stored = next((key for key in other.stored if renamed(key) == other.head or key == "output_layer.weight"), None)
    if stored is None:
        return False
    lm_head = other.stored[stored]
    if (
        len(lm_head.shape) != 2
        or not lm_head.shape[0]
        or prod(own.shape) != lm_head.shape[1]
        or own.dtype != lm_head.dtype
    ):
        return False
    with Files(side.source) as ours, Files(other.source) as theirs:
        row = ours.whole(own).tobytes()
        return row == theirs.whole(lm_head.cut(0, 0, 1)).tobytes() and any(row)
