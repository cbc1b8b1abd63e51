"""Finds matrices of the layers whose numbers all have one sign, by a few short pieces of each.

The first piece of a sound matrix has both signs, so that one read of it is enough; three pieces are read of any other.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptcheck.linter.rule import Skip
from ckptcheck.values.detectors.byte_compare import map_pieces, read_tensor_bytes
from ckptcheck.values.detectors.matrix_samples import FLOATS
from ckptcheck.values.detectors.roles import is_matrix, is_scale
from ckptcheck.values.dtypes import FORMATS, decode

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

LEAST_SIDE = 32
"""Narrower matrices are tables, kernels of convolutions or gates of a few heads."""
PIECE = 256
"""Elements that are read in each of three places."""
LEAST_NONZERO = PIECE // 2
"""Numbers of a piece that are not zero, from which it says something: with more zeros a matrix is sparse or damaged."""
TABLE = re.compile(r"embed|position|rel_pos|rope|rotary|A_log|inv_freq|filter|mask", re.I)
"""Names of tables that are no projections."""


def find_one_signed(ckpt: Checkpoint) -> list[str]:
    """Return the matrices of the language model's layers, experts aside, in whose pieces all numbers have one sign.

    Raises Skip if a file has shrunk, OSError if reading fails.
    """
    stack = ckpt.components.stack
    if stack is None:
        return []
    names = [
        name
        for layer, rests in sorted(stack.layers.items())
        for rest in sorted(rests)
        if "{}" not in rest and _is_projection(ckpt, name := stack.full_name(layer, rest))
    ]
    found = map_pieces(ckpt, lambda name: _has_one_sign(ckpt, name), names)
    return [name for name, is_one_signed in zip(names, found, strict=True) if is_one_signed]


def _is_projection(ckpt: Checkpoint, name: str) -> bool:
    stats = ckpt.values.tensors.get(name)
    return (
        stats is not None
        and name in ckpt.tensor_to_file
        and name.endswith(("weight", "proj"))
        and stats.dtype in FLOATS
        and is_matrix(stats)
        and min(stats.shape[-2:]) >= LEAST_SIDE
        and not (stats.constant or is_scale(name) or TABLE.search(name))
    )


def _has_one_sign(ckpt: Checkpoint, name: str) -> bool:
    """Whether the numbers in three places of a matrix are all positive, or all negative."""
    import numpy as np

    tensor = ckpt.tensors[name]
    width = FORMATS[tensor.dtype].bits // 8
    elements = tensor.nbytes // width
    signs = set()
    for quarter in (2, 1, 3):
        raw = read_tensor_bytes(ckpt, name, (elements * quarter // 4 - PIECE // 2) * width, PIECE * width)
        if len(raw) < PIECE * width:
            raise Skip(f"{ckpt.tensor_to_file[name]} shrank while it was being read")
        values = decode(tensor.dtype, np.frombuffer(raw, FORMATS[tensor.dtype].unsigned))
        positive, negative = int((values > 0).sum()), int((values < 0).sum())
        if min(positive, negative) or max(positive, negative) < LEAST_NONZERO:
            return False
        signs.add(positive > 0)
    return len(signs) == 1
