"""Value heads: where a critic keeps one, and whether it was ever trained."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ckptcheck.bridge.area import Area
from ckptcheck.bridge.hf_names import renamed
from ckptcheck.comparison.cast import can_cast, cast
from ckptcheck.comparison.matching import EMBEDDING, OUTPUT, is_score, is_score_in_output
from ckptcheck.comparison.side import Side
from ckptcheck.phrase import shape

if TYPE_CHECKING:
    from ckptcheck.comparison.comparison import Comparison
    from ckptcheck.comparison.equality import How
    from ckptcheck.comparison.matching import Pair


def heads(seen: Comparison) -> list[tuple[Side, str]]:
    """Return the weights of value heads, with their side."""
    return [
        (side, name)
        for side in (seen.first, seen.second)
        for name, area in side.stored.items()
        if (name.endswith(".weight") and is_score(renamed(name))) or is_score_in_output(side, name, area)
    ]


def lm_head(side: Side) -> str | None:
    """Return the name of the weight that makes logits: the LM head, or the embedding where that is tied; None in a critic."""
    names = {renamed(name): name for name, area in side.stored.items() if not is_score_in_output(side, name, area)}
    stored = names.get(side.head) or names.get(OUTPUT)
    if stored is None and side.tied:
        stored = names.get(side.embedding) or names.get(EMBEDDING)
    return stored


def embedding(side: Side) -> str | None:
    """Return the name of the embedding."""
    names = {renamed(name): name for name in side.stored}
    return names.get(side.embedding) or names.get(EMBEDDING)


def is_first_row(side: Side, name: str, other: Side, stored: str) -> bool:
    """Whether a value head of one side is the first row of a weight of the other, rounded to its dtype. Raises Unreadable."""
    from ckptcheck.comparison.reading import Files

    own, rows = side.stored[name], other.stored[stored]
    if len(rows.shape) != 2 or not rows.shape[0] or prod(own.shape) != rows.shape[1]:
        return False
    if own.dtype != rows.dtype and not can_cast(rows.dtype, own.dtype):
        return False
    with Files(side.source) as ours, Files(other.source) as theirs:
        head = ours.whole(own)
        row = cast(theirs.whole(rows.cut(0, 0, 1)), rows.dtype, own.dtype)
        return head.tobytes() == row.tobytes() and bool(head.any())


def unfit(side: Side, name: str) -> str:
    """Say why a value head cannot give a value of every token; "" where it can. Raises Unreadable."""
    import numpy as np

    from ckptcheck.comparison.reading import Files
    from ckptcheck.values.dtypes import decode

    area = side.stored[name]
    rows = embedding(side)
    hidden = side.stored[rows].shape[1] if rows is not None and len(side.stored[rows].shape) == 2 else None
    wide = area.shape[-1] if area.shape else 0
    if prod(area.shape[:-1]) != 1 or len(area.shape) > 2 or (hidden is not None and wide != hidden):
        return f"it is {shape(area.shape)}, and gives no one value of {hidden or 'the'} hidden numbers"
    if not can_cast(area.dtype, "F32"):
        return ""
    with Files(side.source) as files:
        values = decode(area.dtype, files.whole(area))
    bad = values.size - int(np.isfinite(values).sum())
    return f"{bad:,} of its {values.size:,} numbers are not finite" if bad else ""


def compared_heads(seen: Comparison) -> list[tuple[Pair, How]]:
    """Return the value heads that both sides have, and how they are compared."""
    return [
        (pair, how)
        for pair, how in seen.plain
        if (pair.name.endswith(".weight") and is_score(renamed(pair.name)))
        or (pair.name == OUTPUT and pair.first.shape[:1] == (1,))
    ]


def moved_by_training(seen: Comparison) -> tuple[int, int]:
    """Return how many matrices beside the heads differ for no known cause, as training leaves them, and how many there are."""
    beside = {pair.name for pair, _ in compared_heads(seen)}
    different = {pair.name for pair, _, _ in seen.findings.different} - beside
    if different:
        different -= {name for verdict in seen.reasons if verdict.confidence != "unknown" for name in verdict.tensors}
    matrices = [
        pair.name
        for pair, _ in seen.plain
        if pair.name not in beside and isinstance(pair.first, Area) and len(pair.first.shape) >= 2
    ]
    return sum(name in different for name in matrices), len(matrices)
