"""Compares the master copies of an optimizer with the weights that were rounded from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ckptcheck.values.dtypes import decode_float64

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.megatron.megatron import Megatron
    from ckptcheck.checkpoint.megatron.tensor import GlobalTensor

SAMPLE_ELEMENTS = 1 << 12
"""Elements compared in each place, rounded to whole rows; three places a tensor, and three layers."""
ROUNDING_TOLERANCE = 0.1
"""Tolerance for rounding, relative to the number plus a hundredth of the largest number. BF16 rounds by 2^-8, FP8 by 2^-4."""


def is_foreign_master(run: Megatron, master: GlobalTensor, weight: GlobalTensor) -> bool:
    """Whether a quarter of the numbers of a master copy differ from the weight's, in at least one of the sampled places.

    Tensors of different shapes, and dtypes other than floats of 16 bits or more, are not compared. Raises EvidenceError if a
    chunk cannot be read.
    """
    import numpy as np

    if master.shape != weight.shape or not master.shape or 0 in master.shape:
        return False
    for place in _sample_boxes(master.shape):
        pair = [_to_float64(run.read(tensor, place), tensor.dtype) for tensor in (master, weight)]
        ours, theirs = pair
        if ours is None or theirs is None or not np.isfinite(ours).all():
            continue
        if not np.isfinite(theirs).all():
            return True
        allowed = ROUNDING_TOLERANCE * (np.abs(theirs) + np.abs(theirs).max() / 100)
        if 4 * np.count_nonzero(np.abs(ours - theirs) > allowed) > ours.size:
            return True
    return False


def is_damaged(run: Megatron, weight: GlobalTensor) -> bool:
    """Whether a weight is all zero, or one of the sampled places holds NaN or Inf. Raises EvidenceError as above."""
    import numpy as np

    places = [_to_float64(run.read(weight, place), weight.dtype) for place in _sample_boxes(weight.shape)]
    if any(values is not None and not np.isfinite(values).all() for values in places):
        return True
    return not run.read(weight).any()


def _sample_boxes(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Yield boxes at the beginning, in the middle and at the end of a tensor, and of its first, middle and last layer."""
    if len(shape) > 2:
        for layer in sorted({0, shape[0] // 2, shape[0] - 1}):
            yield from ((slice(layer, layer + 1), *place) for place in _sample_boxes(shape[1:]))
        return
    rows = max(1, min(shape[0], SAMPLE_ELEMENTS // max(1, shape[-1]) if len(shape) > 1 else SAMPLE_ELEMENTS))
    for begin in sorted({0, (shape[0] - rows) // 2, shape[0] - rows}):
        yield (slice(begin, begin + rows),)


def _to_float64(raw: NDArray[Any], dtype: str) -> NDArray[Any] | None:
    if dtype not in ("F64", "F32", "F16", "BF16"):
        return None
    return decode_float64(dtype, raw.reshape(-1))
