"""Counts block scales that are zero over codes that are not: a scale too small for its dtype takes its whole block along.

A zero scale over codes of zero is sound: the block was zero. Small scales are read as a whole. Of larger ones the value pass
knows the long runs of zeros and looks at some hundred numbers, and only those in which it saw a zero are read again, with the
codes of their weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.quantization.storage import ModuleStorage, ModuleTensor
from ckptcheck.values.detectors.byte_compare import is_cleared, read_patterns
from ckptcheck.values.first_looks import NONZERO
from ckptcheck.values.stats import clip_runs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.quantization.quantization import Quantization

ROLES = ("weight_scale", "weight_scale_inv", "weight_scales", "scales", "scale", "scale_inv")
"""Names of the scales of blocks, rows or groups of a weight."""
SMALL, PIECE, PIECES = 1 << 14, 1 << 9, 16
"""Bytes up to which a scale is read as a whole; bytes of a piece, and the pieces, of a larger one that the pass did not look at."""
MOST_WEIGHTS = 256
"""Weights whose codes are read: of a model with lost blocks in all of its experts, enough to say so."""
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where the number of each of eight output channels lies in a word of AWQ."""


class LostBlocks(msgspec.Struct, frozen=True):
    """A scale with zeros over codes that are not zero."""

    name: str
    number: int
    """How many blocks are lost."""


def find_lost_blocks(ckpt: Checkpoint) -> list[LostBlocks]:
    """Return the scales with zeros over codes that are not; [] on the Hub.

    Raises Skip if a file has shrunk, OSError if reading fails.
    """
    if ckpt.quantization is None or not ckpt.can_sample:
        return []
    found: list[LostBlocks] = []
    read = 0
    for stored, name, weight in _iter_block_scales(ckpt, ckpt.quantization):
        stats = ckpt.values.tensors.get(name)
        if stats is None or stats.constant or weight not in ckpt.tensor_to_file or not _may_have_zeros(ckpt, name):
            continue
        zeros = _read_numbers(ckpt, name) == 0
        if zeros.any() and (read := read + 1) <= MOST_WEIGHTS and (number := _count_lost(ckpt, weight, stored, zeros)):
            found.append(LostBlocks(name, number))
    return found


def _iter_block_scales(ckpt: Checkpoint, quantization: Quantization) -> Iterator[tuple[ModuleStorage, str, str]]:
    """Yield each scale of more than one number: how its module is stored, its name and its weight's."""
    for stored, modules in quantization.storages.items():
        parts = [part for role, part in stored.parts.items() if role in ROLES and prod(part.shape) > 1]
        if stored.weight is not None and stored.is_quantized:
            for module, part in product(modules, parts):
                yield stored, stored.name(module, part.role), stored.name(module, stored.weight.role)


def _may_have_zeros(ckpt: Checkpoint, name: str) -> bool:
    """Whether a scale is small, has a long run of zeros, or one of the numbers that were looked at is zero."""
    shard, nbytes = ckpt.tensor_to_file[name], ckpt.tensors[name].nbytes
    begin = ckpt.shards[shard].tensors[name].data_offsets[0]
    if nbytes <= SMALL or clip_runs(ckpt.values.zero_runs.get(shard, []), begin, begin + nbytes):
        return True
    if name in ckpt.values.looks:
        return not is_cleared(ckpt, name, NONZERO)
    places = ((nbytes - PIECE) * number // (PIECES - 1) // 8 * 8 for number in range(PIECES))
    return not all(read_patterns(ckpt, name, place, PIECE).all() for place in places)


def _read_numbers(ckpt: Checkpoint, name: str) -> NDArray[np.unsignedinteger]:
    """Read the patterns of a tensor, in its shape. Raises Skip if the file has shrunk."""
    return read_patterns(ckpt, name, 0, ckpt.tensors[name].nbytes).reshape(ckpt.tensors[name].shape)


def _count_lost(ckpt: Checkpoint, weight: str, storage: ModuleStorage, zeros: NDArray[np.bool_]) -> int:
    """Count the blocks with a zero scale whose codes are not zero; 0 if it is not known which codes belong to a scale."""
    import numpy as np

    assert storage.weight is not None
    assert ckpt.quantization is not None
    if ckpt.quantization.config.get("bits") == 3:  # whose words hold parts of numbers
        return 0
    filled = _mark_filled(_read_numbers(ckpt, weight), storage.weight, zeros.shape)
    if filled is None or not _is_in_order(ckpt, weight, storage):
        return 0
    if zeros.ndim == 1:
        zeros = zeros[:, None]
    # gpt-oss keeps the codes of a block in a dimension of their own
    filled = filled.reshape(*filled.shape[: zeros.ndim - 1], -1)
    if zeros.ndim != filled.ndim or zeros.ndim not in (2, 3) or zeros.shape[:-2] != filled.shape[:-2]:
        return 0
    blocks = ckpt.quantization.config.get("weight_block_size")
    for axis in (-2, -1):
        declared = blocks[axis] if isinstance(blocks, list) and len(blocks) == 2 and zeros.shape[-2] > 1 else None
        size = _find_block(filled.shape[axis], zeros.shape[axis], declared)
        if size is None:
            return 0
        filled = np.logical_or.reduceat(filled, np.arange(0, filled.shape[axis], size), axis=axis)
    return int(np.count_nonzero(zeros & filled))


def _find_block(length: int, number: int, declared: object) -> int | None:
    """Return how many codes of an axis share a scale; None if their number leaves more than one answer."""
    if isinstance(declared, int) and declared > 0 and -(-length // declared) == number:
        return declared
    even = length // number if number and length % number == 0 else None
    if even is not None and (even & (even - 1) == 0 or number == 1):
        return even
    power = 1 << (-(-length // max(number, 1)) - 1).bit_length()
    return power if even is None and -(-length // power) == number else None


def _is_in_order(ckpt: Checkpoint, weight: str, storage: ModuleStorage) -> bool:
    """Whether the inputs of a weight belong to its groups in order (no `desc_act`, no `actorder`)."""
    import numpy as np

    assert storage.weight is not None
    module = weight.removesuffix(storage.weight.ending)
    indices = [storage.name(module, role) for role in ("g_idx", "weight_g_idx") if role in storage.parts]
    return all((np.diff(_read_numbers(ckpt, index).astype(np.int64)) >= 0).all() for index in indices)


def _mark_filled(
    codes: NDArray[np.unsignedinteger], weight: ModuleTensor, scale: tuple[int, ...]
) -> NDArray[np.bool_] | None:
    """Return which codes, or bytes or words of them, are not zero; None for codes that are not known.

    Packed integers may have a zero point: there a word is not zero if its bytes differ from one another.
    scale: the shape of the scale.
    """
    import numpy as np

    filled: NDArray[np.bool_] | None = None
    if weight.dtype in ("F8_E4M3", "F8_E5M2"):
        filled = (codes & np.uint8(0x7F)) != 0
    elif weight.dtype == "I8":
        filled = codes != 0
    elif weight.dtype == "U8":  # two numbers of E2M1
        filled = (codes & np.uint8(0x77)) != 0
    elif weight.role == "qweight" and len(scale) == 2 and codes.shape[-1] * 8 == scale[-1]:
        # AWQ: a word is a row of eight output channels
        numbers = (codes[..., None] >> np.array([4 * place for place in AWQ_ORDER], np.uint32)) & np.uint32(15)
        if len(codes) % scale[0] == 0:
            groups = numbers.reshape(scale[0], -1, scale[-1])
            filled = (groups != groups[:, :1]).reshape(len(codes), -1)
    elif weight.dtype == "I32":
        filled = codes != (codes & np.uint32(0xFF)) * np.uint32(0x01010101)
    return filled
