"""Finds matrices whose numbers pile up at one largest magnitude, as numbers that were cut off there do.

A trained matrix has one or two numbers of its largest magnitude: of nine trained models, none has a matrix of the layers in which
more than one in 6,000 is within a thousandth of it. A cast to a format that ends there, or a scale that was too small, leaves a
share of all numbers at the end of the range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptcheck.linter.rule import Skip
from ckptcheck.values.detectors.byte_compare import map_pieces, read_tensor_bytes
from ckptcheck.values.detectors.one_signed import is_projection
from ckptcheck.values.dtypes import FORMATS, decode

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

PIECE = 2048
"""Numbers that are read from the middle of a matrix."""
MIN_SHARE = 0.01
"""Share of them at the largest magnitude of the matrix."""
NEAR = 1e-3
"""How near a number has to be to the largest magnitude, as a share of it."""
MIN_MAGNITUDES = 24
"""Different magnitudes below which the matrix may hold a few levels by design: ternary weights, or up to five bits, unpacked."""
MAX_OF_A_KIND = 256
"""Matrices of one kind that are looked at: of experts there are thousands."""


@dataclass(frozen=True)
class ClippedMatrix:
    """A matrix whose numbers pile up at its largest magnitude."""

    name: str
    bound: float
    share: float
    """Share of the numbers that were read which lie there."""


def find_clipped_matrices(ckpt: Checkpoint) -> list[ClippedMatrix]:
    """Return the matrices of the layers whose numbers pile up at one largest magnitude.

    It reads 2,048 numbers of each. Raises Skip if a file has shrunk, OSError if reading fails.
    """
    names = [
        name
        for group in ckpt.layout.names_by_template.values()
        if len(group) > 1
        for name in group[:MAX_OF_A_KIND]
        if _can_judge(ckpt, name)
    ]
    return [found for found in map_pieces(ckpt, lambda name: _look_at(ckpt, name), names) if found is not None]


def _can_judge(ckpt: Checkpoint, name: str) -> bool:
    stats = ckpt.values.tensors.get(name)
    return stats is not None and is_projection(ckpt, name) and not (stats.nan or stats.inf)


def _look_at(ckpt: Checkpoint, name: str) -> ClippedMatrix | None:
    import numpy as np

    tensor, stats = ckpt.tensors[name], ckpt.values.tensors[name]
    form = FORMATS[tensor.dtype]
    width = form.bits // 8
    number = min(PIECE, tensor.nbytes // width)
    raw = read_tensor_bytes(ckpt, name, (tensor.nbytes // width - number) // 2 * width, number * width)
    if len(raw) < number * width:
        raise Skip(f"{ckpt.tensor_to_file[name]} shrank while it was being read")
    magnitudes = np.abs(decode(tensor.dtype, np.frombuffer(raw, form.unsigned)))
    share = float((magnitudes >= stats.absmax * (1 - NEAR)).mean())
    if share < MIN_SHARE or len(np.unique(magnitudes)) < MIN_MAGNITUDES:
        return None
    return ClippedMatrix(name, stats.absmax, share)
