"""Finds quantization scales with a stretch of zeros although the weight is not zero there."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.quantization.storage import ModuleTensor
from ckptcheck.values.detectors.byte_compare import read_tensor_bytes
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.stats import clip_runs

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

MAX_READ_BYTES = 1 << 14
"""Bytes up to which a scale is read again as a whole. For larger ones the value pass has the zero runs."""
MIN_STRETCH_SHARE = 8
"""A stretch counts from one part in this many, or from one expert of a stack: single groups that are zero are sound."""
MIN_ELEMENTS = 4
"""Consecutive numbers of a scale that have to be zero."""
SAMPLE_BYTES = 64


def has_zero_stretch(ckpt: Checkpoint, name: str, weight: str, part: ModuleTensor) -> bool:
    """Whether a stretch of a scale is zero where the weight's bytes vary; False on the Hub. Raises OSError if reading fails.

    Scales and weights share their first dimension, so the same share of both belongs together.
    """
    number = prod(part.shape)
    if part.dtype == "U8" and not part.role.startswith("weight_scale"):
        # Codes of bitsandbytes, in which 0 is an ordinary code.
        return False
    if not ckpt.can_sample or number < MIN_ELEMENTS or weight not in ckpt.tensor_to_file:
        return False
    begin, end = _longest_zero_stretch(ckpt, name, max(1, FORMATS[part.dtype].bits // 8))
    size = ckpt.tensors[name].nbytes
    least = size // (max(MIN_STRETCH_SHARE, part.shape[0]) if len(part.shape) == 3 else MIN_STRETCH_SHARE)
    if not max(least, MIN_ELEMENTS * size // number) <= end - begin < size:
        return False
    whole = ckpt.tensors[weight].nbytes
    low, high = begin * whole // size, end * whole // size
    step = min(SAMPLE_BYTES, (high - low) // 4)
    places = (low + (high - low - step) * share // 8 for share in (1, 4, 7))
    return any(_varies(read_tensor_bytes(ckpt, weight, place, step)) for place in places)


def _longest_zero_stretch(ckpt: Checkpoint, name: str, width: int) -> tuple[int, int]:
    """Return [begin, end) of the longest stretch of zero elements of a tensor, in bytes from its start."""
    import numpy as np

    shard, nbytes = ckpt.tensor_to_file[name], ckpt.tensors[name].nbytes
    if nbytes <= MAX_READ_BYTES:
        raw = np.frombuffer(read_tensor_bytes(ckpt, name, 0, nbytes), np.uint8)
        filled = np.flatnonzero(raw[: raw.size // width * width].reshape(-1, width).any(1))
        edges = np.concatenate(([-1], filled, [raw.size // width]))
        at = int(np.argmax(np.diff(edges)))
        return (int(edges[at]) + 1) * width, int(edges[at + 1]) * width
    low = ckpt.shards[shard].tensors[name].data_offsets[0]
    runs = [
        (begin - low, end - low) for begin, end in clip_runs(ckpt.values.zero_runs.get(shard, []), low, low + nbytes)
    ]
    return max(runs, key=lambda run: run[1] - run[0], default=(0, 0))


def _varies(raw: bytes) -> bool:
    """Whether a sample of a weight holds more than one value of a byte. Zeros are one repeated byte in any format."""
    return len(set(raw)) > 1
