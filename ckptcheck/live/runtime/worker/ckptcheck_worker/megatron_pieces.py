"""Maps a rank's parameter to the rows or columns of the checkpoint tensors that filled it, and digests each piece.

This is the second way from a rank's parameters to the checkpoint's tensors, beside the export (`Rank.stream`): it
gathers nothing, and cuts a parameter by the origin of its elements at the load. So a fault of the gathering shows
between the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import megatron_layout as layouts
from .shard_digest import digest, sum_shard


@dataclass(frozen=True)
class Piece:
    """A range of rows (axis 0) or columns (axis 1) of a checkpoint tensor, and where a rank's parameter holds it."""

    name: str
    """The checkpoint tensor."""
    axis: int
    begin: int
    end: int
    index: Any
    """The same rows or columns of the parameter, in the order of the checkpoint tensor."""

    def describe(self) -> dict[str, Any]:
        """Return the place in the checkpoint tensor."""
        return {"name": self.name, "axis": self.axis, "begin": self.begin, "end": self.end}

    def take(self, parameter: Any) -> Any:
        """Return this piece of a rank's parameter."""
        return parameter.detach().index_select(self.axis, self.index.to(parameter.device)).contiguous()

    def sum_in(self, piece: Any, shape: Sequence[int]) -> Any:
        """Return the addition of this piece to the two sums of its tensor (see `shard_digest`). shape: the tensor's."""
        offsets = [self.begin if axis == self.axis else 0 for axis in range(len(shape))]
        return sum_shard(piece, offsets, shape)


def locate_pieces(
    weight: dict[str, Any], axis: int | None, part: int, parts: int, groups: int, padded_rows: int
) -> list[Piece]:
    """Return the pieces of a parameter, by sending positions in place of values through the conversion of the load.

    weight: its row of the plan. axis, part, parts: of its tensor-parallel shard. groups: of queries. padded_rows: of the
    embedding and the head, 0 for other weights.
    """
    along = axis or 0
    positions, begins, total = [], [], 1  # 0 stands for padding
    for each in weight["parts"]:
        length = each["shape"][along] if each["shape"] else 1
        positions.append(torch.arange(total, total + length))
        begins.append(total)
        total += length
    whole = layouts.to_megatron(weight["layout"], positions, groups) if along == 0 else positions[0]
    if padded_rows:
        whole = layouts.pad_rows(whole, padded_rows)
    own = layouts.shard(whole, weight["layout"], None if axis is None else 0, part, parts)
    pieces = []
    for each, begin, positions_of_part in zip(weight["parts"], begins, positions):
        inside = ((own >= begin) & (own < begin + len(positions_of_part))).nonzero().flatten()
        at = own[inside] - begin
        order = at.argsort()
        pieces += [
            Piece(each["name"], along, int(run[0]), int(run[-1]) + 1, index)
            for run, index in _split_runs(at[order], inside[order])
        ]
    return pieces


def digest_pieces(
    name: str, parameter: Any, pieces: Sequence[Piece], shapes: dict[str, list[int]]
) -> list[dict[str, Any]]:
    """Describe the piece of each checkpoint tensor in a parameter. name: Megatron's. shapes: of checkpoint tensors."""
    described = []
    for piece in pieces:
        held = piece.take(parameter)
        sums = piece.sum_in(held, shapes[piece.name]).tolist()
        described.append({**piece.describe(), "own": name, "held": digest(held), "sums": sums})
    return described


def digest_range(tensor: Any, piece: dict[str, Any]) -> str:
    """Return the digest of a range of an exported tensor; "" if the tensor ends before it."""
    if tensor.dim() <= piece["axis"] or tensor.shape[piece["axis"]] < piece["end"]:
        return ""
    return digest(tensor.narrow(piece["axis"], piece["begin"], piece["end"] - piece["begin"]).contiguous())


def _split_runs(at: Any, index: Any) -> Iterator[tuple[Sequence[Any], Any]]:
    """Yield the runs of consecutive positions."""
    if not len(at):
        return
    ends = ((at[1:] - at[:-1]) != 1).nonzero().flatten() + 1
    yield from zip(at.tensor_split(ends), index.tensor_split(ends))
