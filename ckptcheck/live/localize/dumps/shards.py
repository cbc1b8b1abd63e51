"""Joins ranks: finds the stages of one pipeline, and tells tensor-parallel ranks from data-parallel ones.

vLLM and SGLang dump a layer under its number in the model; Megatron numbers the layers of each stage, and of each chunk of a
virtual pipeline, from 0. Tensor-parallel ranks compute the same tokens; they have equal matrices after each reduction, and each its
own columns before. Each data-parallel rank has all columns. How many ranks share the columns comes from the dump's names, from
the config, or from whether the columns of two ranks are related.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ckptcheck.compare.activations.points import LAYER, execution_order
from ckptcheck.live.localize.dumps.rank import RankPoints, Replica

ROUNDING = 1e-3
"""The output of one rank is the input of another if they differ by at most this share of the norm."""
COLUMNS = ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "core", "gate_proj", "up_proj", "act", "lm_head")
"""Suffixes of points whose columns are spread over the tensor-parallel ranks."""
OWN_COLUMNS = ("q_proj", "core", "gate_proj", "up_proj", "act")
"""The points among them without copies: a rank may have a copy of another's keys and values."""
RELATED = 0.5
"""Correlation at which two matrices are the same apart from a fault. The columns of two ranks correlate near 0."""


def split_into_stages(pieces: Sequence[RankPoints]) -> list[list[RankPoints]]:
    """Return the pieces stage by stage, in the order of execution, with the numbers of their layers in the model."""
    if not pieces:
        return []
    stages = _group_by_layers(pieces) or _follow_hidden_states(pieces)
    is_counted_by_stage = len(stages) > 1 and all(0 in piece.layers for piece in pieces)
    first = 0
    numbered = []
    for stage in stages:
        numbered.append([_renumber_layers(piece, first if is_counted_by_stage else 0) for piece in stage])
        first += max((len(piece.layers) for piece in stage), default=0)
    return numbered


def _group_by_layers(pieces: Sequence[RankPoints]) -> list[list[RankPoints]]:
    """Group pieces whose layers are numbered through the model; [] if several stages have the same numbers."""
    by_layers: dict[frozenset[int], list[RankPoints]] = {}
    for piece in pieces:
        by_layers.setdefault(piece.layers, []).append(piece)
    if len(by_layers) == 1:
        is_one_stage = len({(piece.begins, piece.ends, piece.chunk) for piece in pieces}) == 1
        return [list(pieces)] if is_one_stage else []
    all_layers = [layer for layers in by_layers for layer in layers]
    if len(all_layers) != len(set(all_layers)):
        return []
    return [by_layers[layers] for layers in sorted(by_layers, key=lambda layers: min(layers, default=-1))]


def _follow_hidden_states(pieces: Sequence[RankPoints]) -> list[list[RankPoints]]:
    """Group pieces by the source of their hidden states: the output of a stage is the input of the next.

    If the dump lacks either, the ranks of one stage are assumed to be neighbours, as Megatron numbers them.
    """
    ordered = sorted(pieces, key=lambda piece: piece.chunk)
    begin = [piece for piece in ordered if piece.begins and piece.chunk == ordered[0].chunk]
    if not begin:
        begin = [piece for piece in ordered if not any(_hands_over(other, piece) for other in ordered)]
    stages = [begin or [ordered[0]]]
    rest = [piece for piece in ordered if piece not in stages[0]]
    while rest:
        successors = [piece for piece in rest if any(_hands_over(before, piece) for before in stages[-1])]
        if not successors:
            successors = rest[: len(stages[0])]
        stages.append(successors)
        rest = [piece for piece in rest if piece not in successors]
    return stages


def _hands_over(before: RankPoints, after: RankPoints) -> bool:
    """Return whether the output of one piece is the input of the other."""
    if before is after or before.leaves is None or after.enters is None or before.leaves.shape != after.enters.shape:
        return False
    import numpy as np

    norm = float(np.linalg.norm(before.leaves))
    return norm > 0 and float(np.linalg.norm(after.enters - before.leaves)) <= ROUNDING * norm


def _renumber_layers(piece: RankPoints, first: int) -> RankPoints:
    """Return the piece with `first` added to the numbers of its layers."""
    if first:
        piece.points = {_renumber(point, first): matrix for point, matrix in piece.points.items()}
        piece.layers = frozenset(layer + first for layer in piece.layers)
    return piece


def _renumber(point: str, first: int) -> Any:
    """Return the name of a point with `first` added to its layer."""
    match = LAYER.fullmatch(point)
    return f"model.layers.{int(match[1]) + first}.{match[2]}" if match else point


def join_ranks(pieces: Sequence[RankPoints]) -> tuple[list[Replica], list[str]]:
    """Return the replicas, and why some ranks belong to none: sentences for a reader."""
    stages = [_group_shards(stage) for stage in split_into_stages(pieces)]
    count = min(map(len, stages), default=0)
    replicas = []
    for index in range(count):
        groups = [stage[index] for stage in stages]
        names = tuple(dict.fromkeys(piece.name for group in groups for piece in group))
        replica = Replica(names, {})
        for group in groups:
            _join_group(group, replica)
        replica.points = {point: replica.points[point] for point in sorted(replica.points, key=execution_order)}
        replicas.append(replica)
    left = [piece.name for stage in stages for group in stage[count:] for piece in group]
    return replicas, [f"{name} is of a pipeline whose other stages are not in the dump" for name in left]


def _group_shards(stage: Sequence[RankPoints]) -> list[list[RankPoints]]:
    """Return the tensor-parallel groups of one stage."""
    groups: list[list[RankPoints]] = []
    rest = list(stage)
    while rest:
        peers = [piece for piece in rest if piece is rest[0] or _has_same_tokens(rest[0], piece)]
        size = _count_shards(peers)
        if size == 1 and (split := _count_token_shards(rest[0])) > 1:
            # Sequence parallelism: each rank has a part of the tokens after a reduction, and all tokens before it.
            peers, size = rest[:split], split
        groups += [peers[start : start + size] for start in range(0, len(peers), size)]
        rest = [piece for piece in rest if piece not in peers]
    return groups


def _count_shards(peers: Sequence[RankPoints]) -> int:
    """Return how many of the ranks with the same tokens share the columns of a matrix; 1 if each has all columns."""
    stated = peers[0].tensor_parallel_size
    if stated is None:
        copies = 1 + sum(_has_same_columns(peers[0], piece) for piece in peers[1:])
        stated = len(peers) // copies
    return stated if len(peers) % stated == 0 else 1


def _count_token_shards(piece: RankPoints) -> int:
    """Return how many ranks share the tokens between the reductions of a layer; 1 if each has all tokens."""
    rows = [
        {len(matrix) for point, matrix in piece.points.items() if point.endswith(suffixes)}
        for suffixes in (("o_proj", "down_proj"), ("q_proj", "core", "act"))
    ]
    if not all(len(counts) == 1 for counts in rows):
        return 1
    reduced, whole = rows[0].pop(), rows[1].pop()
    return whole // reduced if reduced and whole % reduced == 0 else 1


def _has_same_tokens(one: RankPoints, two: RankPoints) -> bool:
    """Return whether two ranks of a stage compute the same tokens."""
    if one.tokens is not None and two.tokens is not None:
        return bool(one.tokens.shape == two.tokens.shape and (one.tokens == two.tokens).all())
    shared = [name for name in one.points if name in two.points and not name.endswith(COLUMNS)]
    first = min(shared, key=execution_order, default=None)
    return first is None or correlation(one.points[first], two.points[first]) > RELATED


def _has_same_columns(one: RankPoints, two: RankPoints) -> bool:
    """Return whether two ranks with the same tokens have the same columns of their matrices, so that each has all of them."""
    import numpy as np

    found = [
        correlation(matrix, two.points[point])
        for point, matrix in one.points.items()
        if point.endswith(OWN_COLUMNS) and point in two.points
    ]
    return not found or float(np.median(found)) > RELATED


def correlation(one: Any, two: Any) -> float:
    """Return the correlation of two matrices over the columns of each row; 0 for unlike shapes or NaN and Inf."""
    import numpy as np

    if one.shape != two.shape or not one.size:
        return 0.0
    if np.array_equal(one, two):
        return 1.0
    a, b = (matrix - matrix.mean(1, keepdims=True, dtype=np.float64) for matrix in (one, two))
    norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    found = float((a * b).sum()) / norms if norms else 0.0
    return found if np.isfinite(found) else 0.0


def _join_group(group: Sequence[RankPoints], replica: Replica) -> None:
    """Add the points of one tensor-parallel group to a replica."""
    import numpy as np

    head = group[0]
    replica.tokens = head.tokens if replica.tokens is None else replica.tokens
    replica.positions = head.positions if replica.positions is None else replica.positions
    replica.starts = head.starts if replica.starts is None else replica.starts
    rows = max((len(matrix) for piece in group for matrix in piece.points.values()), default=0)
    for point in dict.fromkeys(point for piece in group for point in piece.points):
        named = [(piece.name, piece.points[point]) for piece in group if point in piece.points]
        matrices = [matrix for _, matrix in named]
        if len(named) == len(group) > 1:
            if len(matrices[0]) < rows and sum(map(len, matrices)) == rows:
                matrices = [np.concatenate(matrices)]
            elif point.endswith(COLUMNS) and not _are_copies(point, matrices):
                matrices = [np.concatenate(list(_drop_copies(point, matrices)), 1)]
            elif not all(np.array_equal(matrices[0], matrix) for matrix in matrices[1:]):
                replica.copies[point] = named
        replica.points[point] = np.ascontiguousarray(matrices[0], dtype=np.float32)


def _are_copies(point: str, matrices: Sequence[Any]) -> bool:
    """Return whether all ranks have all columns: an engine gathers the logits of all ranks on each."""
    if len({len(matrix) for matrix in matrices}) != 1:
        return True
    return not point.endswith(("k_proj", "v_proj", "k_norm")) and all(
        correlation(matrices[0], matrix) > RELATED for matrix in matrices[1:]
    )


def _drop_copies(point: str, matrices: Sequence[Any]) -> Iterator[Any]:
    """Yield each rank's columns, but not a copy of the previous rank's: several ranks may share a key-value head."""
    import numpy as np

    before = None
    for matrix in matrices:
        is_shared = point.endswith(("k_proj", "v_proj", "k_norm"))
        if not (is_shared and before is not None and np.array_equal(before, matrix)):
            yield matrix
        before = matrix
