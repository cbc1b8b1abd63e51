"""Scales of which a whole stretch is zero where the weight is not."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.quantization.stored import Part
from ckptcheck.values.compare import read
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.stats import within

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

SMALL = 1 << 14
"""Bytes of a scale that is read once more as a whole; of larger ones the value pass has the runs of zeros."""
SHARE = 8
"""A stretch is a loss from one part in so many, or from one expert of a stack: single groups that are zero are sound."""
FEWEST = 4
"""Numbers of a scale that have to be zero in a row."""
SAMPLE = 64


def is_partly_zero(ckpt: Checkpoint, name: str, weight: str, part: Part) -> bool:
    """Whether a stretch of a scale is zero where the weight's bytes vary. Never on the Hub. Raises OSError.

    Scales and weights run along the same first dimension, so that shares of the one stand for shares of the other.
    """
    number = prod(part.shape)
    if part.dtype == "U8" and not part.role.startswith("weight_scale"):
        return False  # codes of bitsandbytes, of which 0 is a number as good as any
    if ckpt.source.local is None or number < FEWEST or weight not in ckpt.holders:
        return False
    begin, end = _longest(ckpt, name, max(1, FORMATS[part.dtype].bits // 8))
    size = ckpt.tensors[name].nbytes
    least = size // (max(SHARE, part.shape[0]) if len(part.shape) == 3 else SHARE)
    if not max(least, FEWEST * size // number) <= end - begin < size:
        return False
    whole = ckpt.tensors[weight].nbytes
    low, high = begin * whole // size, end * whole // size
    step = min(SAMPLE, (high - low) // 4)
    places = (low + (high - low - step) * share // 8 for share in (1, 4, 7))
    return any(_varies(read(ckpt, weight, place, step)) for place in places)


def _longest(ckpt: Checkpoint, name: str, width: int) -> tuple[int, int]:
    """Return the longest stretch of zero elements of a tensor, in bytes from its start."""
    import numpy as np

    shard, nbytes = ckpt.holders[name], ckpt.tensors[name].nbytes
    if nbytes <= SMALL:
        raw = np.frombuffer(read(ckpt, name, 0, nbytes), np.uint8)
        filled = np.flatnonzero(raw[: raw.size // width * width].reshape(-1, width).any(1))
        edges = np.concatenate(([-1], filled, [raw.size // width]))
        at = int(np.argmax(np.diff(edges)))
        return (int(edges[at]) + 1) * width, int(edges[at + 1]) * width
    low = ckpt.shards[shard].tensors[name].data_offsets[0]
    runs = [(begin - low, end - low) for begin, end in within(ckpt.values.zero_runs.get(shard, []), low, low + nbytes)]
    return max(runs, key=lambda run: run[1] - run[0], default=(0, 0))


def _varies(raw: bytes) -> bool:
    """Whether a sample of a weight holds more than one byte over and over, as zeros do in any format."""
    return len(set(raw)) > 1
