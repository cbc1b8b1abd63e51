"""Compares the position ids of the same tokens on the two sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ckptcheck.live.localize.dumps.alignment import Match
from ckptcheck.live.localize.dumps.rank import Replica

AXES = ("time", "height", "width")
"""The axes of a multimodal rotary embedding (Qwen2-VL, arXiv:2409.12191)."""


def describe_positions(
    reference: Sequence[Replica], other: Sequence[Replica], matches: Sequence[Match], sides: tuple[str, str]
) -> str | None:
    """Return how the position ids of the same tokens differ; None if they do not, or if a dump has none.

    A shift that is the same for all tokens of a sequence is no difference: rotary embeddings depend on distances alone. The ids of
    text are the same on all three axes of a multimodal rotary embedding, so one row of ids stands for three.
    """
    import numpy as np

    for match in matches:
        ours, theirs = reference[match.reference], other[match.other]
        if ours.positions is None or theirs.positions is None:
            continue
        pair: list[Any] = [ours.positions, theirs.positions]
        if match.rows is not None:
            pair = [ids[rows] for ids, rows in zip(pair, match.rows, strict=True)]
        a, b = (ids.astype(np.int64).reshape(len(ids), -1) for ids in pair)
        if len(a) != len(b) or not len(a):
            continue
        width = max(a.shape[1], b.shape[1])
        a, b = (np.broadcast_to(ids, (len(ids), width)) for ids in (a, b))
        shift = a - b
        # A sequence goes on where the time of both sides does not go back.
        begins = np.zeros(len(a), bool)
        begins[1:] = (np.diff(a[:, 0]) < 0) | (np.diff(b[:, 0]) < 0)
        begins[0] = True
        origin = np.maximum.accumulate(np.where(begins, np.arange(len(a)), 0))
        wrong = shift != shift[origin][:, :1]
        if not wrong.any():
            continue
        token = int(wrong.any(1).argmax())
        axis = int(wrong[token].argmax())
        where = f"the {AXES[axis]} of " if width == len(AXES) else ""
        return (
            f"{int(wrong.any(1).sum()):,} of {len(a):,} tokens have other position ids: {where}token {token} is "
            f"{int(a[token, axis])} on {ours.name} of {sides[0]} and {int(b[token, axis])} on {theirs.name} of {sides[1]}"
        )
    return None
