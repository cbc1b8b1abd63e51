"""Reads a tensor of a checkpoint as bits, for a diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.compare.diagnosis import TensorBits


def read_bits(ckpt: Checkpoint, name: str) -> TensorBits:
    """Return a tensor as bit patterns in its shape. Raises EvidenceError where the file cannot be read."""
    import numpy as np

    from ckptcheck.compare.diagnosis import TensorBits
    from ckptcheck.values.dtypes import FORMATS

    tensor, shard = ckpt.tensors[name], ckpt.shards[ckpt.tensor_to_file[name]]
    raw = ckpt.source.read(shard.name, shard.data_start + tensor.data_offsets[0], tensor.nbytes)
    return TensorBits(tensor.dtype, np.frombuffer(raw, FORMATS[tensor.dtype].unsigned).reshape(tensor.shape))
