"""Holds the master copies of an optimizer against the weights that were rounded from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ckptcheck.values.dtypes import decode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.megatron.run import Megatron
    from ckptcheck.checkpoint.megatron.tensor import GlobalTensor

SAMPLE = 1 << 12
"""Elements that are compared in each place, as far as whole rows allow; three places a tensor, and three layers."""
ROUNDED = 0.1
"""What rounding may change, of the number and of a hundredth of the largest: BF16 2^-8, weights kept in FP8 2^-4."""


def is_another(run: Megatron, master: GlobalTensor, weight: GlobalTensor) -> bool:
    """Whether a quarter of a sample of a master copy are other numbers than the weight's. Of three places one is enough.

    Tensors of other shapes, or of dtypes other than floats of 16 bits and more, are not compared. Raises EvidenceError where
    a chunk cannot be read.
    """
    import numpy as np

    if master.shape != weight.shape or not master.shape or 0 in master.shape:
        return False
    for place in _places(master.shape):
        pair = [_numbers(run.read(tensor, place), tensor.dtype) for tensor in (master, weight)]
        ours, theirs = pair
        if ours is None or theirs is None or not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
            continue
        allowed = ROUNDED * (np.abs(theirs) + np.abs(theirs).max() / 100)
        if 4 * np.count_nonzero(np.abs(ours - theirs) > allowed) > ours.size:
            return True
    return False


def _places(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Yield boxes at the beginning, in the middle and at the end of a tensor, and of its first, middle and last layer."""
    if len(shape) > 2:
        for layer in sorted({0, shape[0] // 2, shape[0] - 1}):
            yield from ((slice(layer, layer + 1), *place) for place in _places(shape[1:]))
        return
    rows = max(1, min(shape[0], SAMPLE // max(1, shape[-1]) if len(shape) > 1 else SAMPLE))
    for begin in sorted({0, (shape[0] - rows) // 2, shape[0] - rows}):
        yield (slice(begin, begin + rows),)


def _numbers(raw: NDArray[Any], dtype: str) -> NDArray[Any] | None:
    import numpy as np

    if dtype not in ("F64", "F32", "F16", "BF16"):
        return None
    return (decode("BF16", raw.reshape(-1)) if dtype == "BF16" else raw.reshape(-1)).astype(np.float64)
