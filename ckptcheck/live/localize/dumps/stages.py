"""Finds the ranks that are stages of one pipeline, and numbers their layers through the model.

vLLM and SGLang dump a layer under its number in the model; Megatron numbers the layers of each stage, and of each chunk of a
virtual pipeline, from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ckptcheck.compare.activations.points import LAYER
from ckptcheck.live.localize.dumps.rank import RankPoints

ROUNDING = 1e-3
"""The output of one rank is the input of another if they differ by at most this share of the norm."""


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
