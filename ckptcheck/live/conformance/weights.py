"""The weights that the kit sends to an engine: a checkpoint's, and the same with every value moved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.files_beside import copy_files_beside
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit.draft import write_tensors

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.compare.diagnosis import TensorBits

MOVED_BITS = {"F64": 48, "F32": 19, "F16": 6, "BF16": 3}
"""Float dtype → the bit of its mantissa that is flipped: a sixteenth of the value's power of two. Other dtypes flip the
lowest bit."""


def read_weights(ckpt: Checkpoint) -> dict[str, TensorBits]:
    """Return all tensors of a checkpoint. Raises EvidenceError for an unreadable file, CkptcheckError for too few tensors."""
    from ckptcheck.compare.diagnosis import TensorBits

    weights = {name: TensorBits.read(ckpt, name) for name in ckpt.tensors}
    if len(weights) < 2:
        raise CkptcheckError(f"{ckpt.target} has {len(weights)} tensors, and the kit needs at least two")
    return weights


def move_values(weights: Mapping[str, TensorBits]) -> dict[str, TensorBits]:
    """Return the same tensors with every value moved: floats by a sixteenth of their power of two."""
    from ckptcheck.compare.diagnosis import TensorBits

    moved = {}
    for name, tensor in weights.items():
        mask = tensor.patterns.dtype.type(1 << MOVED_BITS.get(tensor.dtype, 0))
        moved[name] = TensorBits(tensor.dtype, tensor.patterns ^ mask)
    return moved


def write_safetensors(weights: Mapping[str, TensorBits], path: Path) -> int:
    """Write tensors to a safetensors file; return their bytes."""
    write_tensors(
        path,
        {name: (tensor.dtype, tensor.patterns.shape, tensor.patterns.tobytes()) for name, tensor in weights.items()},
    )
    return sum(tensor.patterns.nbytes for tensor in weights.values())


def write_checkpoint(weights: Mapping[str, TensorBits], like: Path, folder: Path) -> Path:
    """Write a checkpoint of one file with the configuration and the tokenizer of another folder; return its folder."""
    folder.mkdir()
    copy_files_beside(like, folder, lambda name: not name.endswith(".index.json"))
    write_safetensors(weights, folder / "model.safetensors")
    return folder
