"""Finds vectors whose second half is a copy of the first: the part of one tensor-parallel rank, joined with itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptcheck.values.detectors.byte_compare import is_cleared, map_pieces, read_patterns
from ckptcheck.values.detectors.matrix_samples import FLOATS
from ckptcheck.values.detectors.roles import is_scale, starts_at_zero
from ckptcheck.values.detectors.structured_tensors import TABLE
from ckptcheck.values.first_looks import COLUMNS
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

MIN_VECTORS = 2
"""One vector with two equal halves may be an accident."""
MIN_NUMBERS, MIN_DIFFERENT = 8, 4
"""Numbers of a vector, and different ones in its half: two halves of ones are no copy."""
MOST_BYTES = 1 << 20
"""Longer vectors are not read again."""
REPEATED = re.compile(
    r"((^|[._])(q|k|qk|query|key)_?(layer)?_?norm|norm_?[qk]\b|(^|[._])[kv](ey|alue)?(_proj)?\.bias$|inv_freq|qkv)"
)
"""Names of vectors that may repeat by design: a norm of a head for all heads, keys and values of more ranks, sines and cosines."""


def find_repeated_vectors(ckpt: Checkpoint) -> list[str]:
    """Return the vectors whose halves are equal, if they are several; none of one number or a few.

    Only those are read that the value pass does not clear. Raises OSError if reading fails.
    """
    suspects = [name for name, stats in ckpt.values.tensors.items() if _is_judged(ckpt, stats)]
    repeats = map_pieces(ckpt, lambda name: _repeats_half(ckpt, name), suspects)
    found = [name for name, repeated in zip(suspects, repeats, strict=True) if repeated]
    return found if len(found) >= MIN_VECTORS else []


def _is_judged(ckpt: Checkpoint, stats: TensorStats) -> bool:
    return (
        len(stats.shape) == 1
        and stats.shape[0] >= MIN_NUMBERS
        and stats.shape[0] % 2 == 0
        and stats.dtype in FLOATS
        and not stats.constant
        and stats.name in ckpt.tensor_to_file
        and not is_cleared(ckpt, stats.name, COLUMNS)
        and ckpt.tensors[stats.name].nbytes <= MOST_BYTES
        and not (is_scale(stats.name) or starts_at_zero(stats.name))
        and not (REPEATED.search(stats.name) or TABLE.search(stats.name))
    )


def _repeats_half(ckpt: Checkpoint, name: str) -> bool:
    """Whether the second half of a vector holds the bytes of the first, and that is more than a few numbers."""
    import numpy as np

    first, second = read_patterns(ckpt, name, 0, ckpt.tensors[name].nbytes).reshape(2, -1)
    return np.array_equal(first, second) and np.unique(first).size >= MIN_DIFFERENT
