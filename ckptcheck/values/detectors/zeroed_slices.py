"""Finds parts of a model that are all zero while similar parts are not.

Such a part is an expert in a packed stack, the adapter of one layer, or the part of a weight that one rank holds. A rank of a
row-parallel layer (o_proj, down_proj) holds columns: in the file, short pieces of each row, often too short to count as a
block of zeros.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.values.detectors.byte_compare import is_cleared, map_pieces, read_patterns
from ckptcheck.values.detectors.duplicate_experts import iter_stacked_experts
from ckptcheck.values.detectors.roles import (
    find_vocabulary_tensors,
    is_matrix,
    is_packed,
    is_scale,
    name_pattern,
    starts_at_zero,
)
from ckptcheck.values.detectors.structured_tensors import is_learned_weight
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.first_looks import MIDDLE
from ckptcheck.values.stats import TensorStats, clip_runs

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

ADAPTER_SUFFIXES = ("lora_B", "lora_embedding_B")
MIN_SIBLINGS, MAX_ZERO_SHARE = 4, 4
"""Siblings that it takes to judge an adapter, and the share of them (1 in 4) that may be zero at most. If more are
zero, somebody left layers untrained on purpose."""

COLUMN_PARTS = 8
"""Parts in which columns are judged: eighths. The parts of 2 or 4 ranks are whole numbers of eighths."""
MIN_COLUMNS = 128
"""A matrix with fewer columns is not judged: its parts would be too narrow."""
READ_BYTES = 1 << 22


def find_zero_experts(ckpt: Checkpoint) -> dict[str, list[int]]:
    """Return packed tensor with all experts of a layer → the experts that are all zero, if others are not.

    It finds experts of 1 KiB or more from the zero runs of the value pass, and reads nothing.
    """
    zero_experts = {}
    for name in iter_stacked_experts(ckpt):
        stats = ckpt.values.tensors.get(name)
        if stats is None or stats.zero or name not in ckpt.tensor_to_file or not is_packed(stats):
            continue
        begin = ckpt.shards[stats.shard].tensors[name].data_offsets[0]
        size = ckpt.tensors[name].nbytes // stats.shape[0]
        experts: list[int] = []
        for low, high in clip_runs(ckpt.values.zero_runs.get(stats.shard, []), begin, begin + size * stats.shape[0]):
            experts += range(-(-(low - begin) // size), (high - begin) // size)
        if experts:
            zero_experts[name] = experts
    return zero_experts


def find_zero_rank_shards(ckpt: Checkpoint) -> dict[str, list[str]]:
    """Return weight → its parts that are all zero, if another part is not. Raises Skip if values are not read.

    Vectors, tensors that start at zero by design, and as many last rows of a vocabulary as may be padding are left out.
    """
    zero_shards: dict[str, list[str]] = {}
    roles = find_vocabulary_tensors(ckpt)
    for whole, parts in ckpt.weight_parts.items():
        if is_scale(whole) or starts_at_zero(whole) or whole.endswith("bias"):
            continue
        matrices = [
            stats for part in parts if (stats := ckpt.values.tensors.get(part)) is not None and len(stats.shape) > 1
        ]
        zero = [stats.name for stats in matrices if stats.zero]
        if not zero or len(zero) == len(matrices):
            continue
        last = ckpt.vocabulary_tensors.get(whole, parts)[-len(zero) :]
        if zero[0] in roles and set(last) == set(zero) and sum(ckpt.tensors[n].shape[0] for n in zero) <= ckpt.padding:
            continue
        zero_shards[whole] = zero
    return zero_shards


def find_zero_adapters(ckpt: Checkpoint) -> list[str]:
    """Return each ``lora_B`` that is all zero while most other layers' and another one of its layer are not.

    A layer that training did not reach is zero throughout (cross-attention trained on text), and so are experts that no token
    chose: neither is returned.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    trained_layers: set[str] = set()
    for name, stats in ckpt.values.tensors.items():
        if _kind_is_adapter(kind := name_pattern(name)):
            groups[kind].append(name)
            if not stats.zero:
                trained_layers.add(_layer_prefix(name))
    adapters = []
    for names in groups.values():
        lost = [name for name in names if ckpt.values.tensors[name].zero and _layer_prefix(name) in trained_layers]
        zero = sum(ckpt.values.tensors[name].zero for name in names)
        if len(names) >= MIN_SIBLINGS and MAX_ZERO_SHARE * zero <= len(names):
            adapters += lost
    return sorted(adapters)


@lru_cache(1 << 14)
def _kind_is_adapter(kind: str) -> bool:
    return any(part in ADAPTER_SUFFIXES for part in kind.split(".")) and ".experts." not in kind


def _layer_prefix(name: str) -> str:
    """Return a name up to its last number, which is the number of the layer."""
    numbers = list(INDEX.finditer(name))
    return name[: numbers[-1].end()] if numbers else ""


def find_zero_columns(ckpt: Checkpoint) -> dict[str, tuple[int, int]]:
    """Return matrix → [begin, end) of the columns that are zero in all rows, where these are adjacent eighths of its columns.

    The last eighth alone counts as padding. It reads one row of each matrix that the value pass does
    not clear, and all rows if that one is suspicious. Returns
    nothing on the Hub, where each row would be a request. Raises OSError if reading fails.
    """
    tensors = ckpt.values.tensors
    judged = [
        stats
        for name, stats in tensors.items()
        if ckpt.can_sample
        and not is_cleared(ckpt, name, MIDDLE)
        and name in ckpt.tensor_to_file
        and _has_columns(stats)
    ]
    in_the_middle = map_pieces(
        ckpt, lambda stats: _find_zero_parts(ckpt, stats, prod(stats.shape[:-1]) // 2, 1), judged
    )
    zero_columns: dict[str, tuple[int, int]] = {}
    for stats, parts in zip(judged, in_the_middle, strict=True):
        lines, columns = prod(stats.shape[:-1]), stats.shape[-1]
        if parts and len(parts) < COLUMN_PARTS and parts == _find_zero_parts(ckpt, stats, 0, lines):
            begin, end = min(parts) * columns // COLUMN_PARTS, (max(parts) + 1) * columns // COLUMN_PARTS
            if max(parts) - min(parts) + 1 == len(parts) and parts != {COLUMN_PARTS - 1}:
                zero_columns[stats.name] = begin, end
    return zero_columns


def _has_columns(stats: TensorStats) -> bool:
    plain = is_matrix(stats) and not stats.zero and not stats.constant
    wide = stats.shape[-1] >= MIN_COLUMNS and stats.shape[-1] % COLUMN_PARTS == 0 if plain else False
    return wide and is_learned_weight(stats.name) and not is_scale(stats.name) and not starts_at_zero(stats.name)


def _find_zero_parts(ckpt: Checkpoint, stats: TensorStats, first: int, number: int) -> set[int]:
    """Return the eighths of the columns that are zero in `number` rows from row `first`."""
    import numpy as np

    width = stats.shape[-1] * (FORMATS[stats.dtype].bits // 8)
    step = max(1, READ_BYTES // width)
    zero = np.ones(COLUMN_PARTS, np.bool_)
    for row in range(first, first + number, step):
        rows = read_patterns(ckpt, stats.name, row * width, min(step, first + number - row) * width)
        zero &= ~rows.reshape(-1, COLUMN_PARTS, stats.shape[-1] // COLUMN_PARTS).any(axis=(0, 2))
        if not zero.any():
            break
    return {int(part) for part in np.flatnonzero(zero)}
