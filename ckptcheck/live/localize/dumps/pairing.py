"""Brings the tokens that two replicas have in common into one order, so that points and position ids compare row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ckptcheck.compare.activations.points import EPSILON, execution_order, rounding_limit
from ckptcheck.compare.activations.relation import describe_relation
from ckptcheck.live.localize.dumps.alignment import Match
from ckptcheck.live.localize.dumps.rank import Replica
from ckptcheck.live.localize.localization import UnequalCopy

MOST_VOCABULARY_PADDING = 128 * 64
"""Most logits without a token: Megatron pads the vocabulary to a multiple of 128 · TP; engines cut the padding off."""
AXES = ("time", "height", "width")
"""The axes of a multimodal rotary embedding (Qwen2-VL, arXiv:2409.12191)."""


def pair_points(ours: Replica, theirs: Replica, match: Match) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the points of two replicas with the tokens of the match.

    If the ranks of a group should have equal outputs and do not, it takes the output that is farthest from the other
    side; or their sum, if an engine adds them up later. A point whose rows are no tokens of the match stays on the
    first side only.
    """
    reference = {point: _pick_rows(matrix, ours, match, 0) for point, matrix in ours.points.items()}
    other = {point: _pick_rows(matrix, theirs, match, 1) for point, matrix in theirs.points.items()}
    for point in {*ours.copies, *theirs.copies}:
        if reference.get(point) is None or other.get(point) is None:
            continue
        for own, opposite, replica, side in ((reference, other, ours, 0), (other, reference, theirs, 1)):
            if point in replica.copies:
                copies = [_pick_rows(matrix, replica, match, side) for _, matrix in replica.copies[point]]
                own[point] = _choose_copy(copies, opposite[point])
    _cut_vocabulary_padding(reference, other)
    return (
        {point: ours.points[point] if matrix is None else matrix for point, matrix in reference.items()},
        {point: matrix for point, matrix in other.items() if matrix is not None and reference.get(point) is not None}
        | {point: theirs.points[point] for point in other if point not in reference},
    )


def _cut_vocabulary_padding(reference: dict[str, Any], other: dict[str, Any]) -> None:
    """Drop the last logits of the side that has more of them, where a padded vocabulary can be the reason."""
    ours, theirs = reference.get("lm_head"), other.get("lm_head")
    if ours is None or theirs is None or len(ours) != len(theirs):
        return
    least, most = sorted((ours.shape[1], theirs.shape[1]))
    if most - least < min(MOST_VOCABULARY_PADDING, least):
        reference["lm_head"], other["lm_head"] = ours[:, :least], theirs[:, :least]


def find_unequal_copy(
    replica: Replica, opposite: Mapping[str, Any], match: Match, side: tuple[int, str], dtype: str
) -> UnequalCopy | None:
    """Return the first output that should be equal on the ranks of a replica and is not; None without one.

    Args:
        replica: the replica.
        opposite: point → matrix of the other side, rows as in the match.
        match: the tokens that are compared.
        side: 0 for the reference and 1 for the other side, and its name.
        dtype: what both sides compute in; a reduction gives all ranks the same number, so the limit is narrow.
    """
    import numpy as np

    limit = rounding_limit(dtype) if dtype == "float32" else EPSILON[dtype]
    for point in sorted(replica.copies, key=execution_order):
        named = [(name, _pick_rows(matrix, replica, match, side[0])) for name, matrix in replica.copies[point]]
        target = opposite.get(point)
        if target is None or any(matrix is None or matrix.shape != target.shape for _, matrix in named):
            continue
        matrices = [matrix for _, matrix in named]
        if _are_summands(matrices, target):
            continue
        distances = [float(np.nan_to_num(np.linalg.norm(matrix - target), nan=np.inf)) for matrix in matrices]
        near, far = int(np.argmin(distances)), int(np.argmax(distances))
        norm = float(np.linalg.norm(matrices[near]))
        relative = float(np.linalg.norm(matrices[far] - matrices[near])) / norm if norm else float("inf")
        if not relative <= limit:
            relation = describe_relation(point, {point: matrices[near]}, {point: matrices[far]})
            return UnequalCopy(side[1], point, named[far][0], named[near][0], relative, relation)
    return None


def _pick_rows(matrix: Any, replica: Replica, match: Match, side: int) -> Any:
    """Return the rows of the match; None if the matrix does not have one row for each token of the replica."""
    if match.rows is None:
        return matrix
    rows = match.rows[side]
    if len(matrix) == replica.rows:
        return matrix[rows]
    return matrix if len(matrix) == 1 and match.has_last_token else None


def _choose_copy(copies: list[Any], target: Any) -> Any:
    """Return the copy that is farthest from the other side's output, or the sum of all if the other side has that."""
    import numpy as np

    if any(copy is None or copy.shape != target.shape for copy in copies):
        return copies[0]
    if _are_summands(copies, target):
        return np.sum(copies, axis=0, dtype=np.float32)
    return max(copies, key=lambda copy: float(np.nan_to_num(np.linalg.norm(copy - target), nan=np.inf)))


def _are_summands(copies: list[Any], target: Any) -> bool:
    """Return whether the ranks' outputs add up to the other side's, because an engine reduces them after the module."""
    import numpy as np

    nearest = min(float(np.linalg.norm(copy - target)) for copy in copies)
    return float(np.linalg.norm(np.sum(copies, axis=0) - target)) < nearest / 2


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
