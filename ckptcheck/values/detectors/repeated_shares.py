"""Finds matrices that hold a quarter or an eighth of their rows or columns twice, after a wrong merge of ranks.

It reads the first bytes of the eight shares along each axis: eight short reads, and a row. Only if two of them are
equal, it compares the whole shares.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.values.detectors.byte_compare import PREFIX_BYTES, STEP_BYTES, have_equal_bytes, read_tensor_bytes

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

RANK_COUNTS = (4, 8, 16)
"""Numbers of shares. Sixteenths are eighths of either member of a fused pair such as `gate_up_proj`; others are not examined."""
FUSED_PAIR = re.compile(
    r"gate_up|gate_and_up|up_gate|linear_fc1|w13|w12|dense_h_to_4h|experts\.fc1|input_linear|\.Wi\."
)
KEYS_AND_VALUES = re.compile(r"(^|[._])(k|v|kv|key|value)(_proj|_lin)?\.[a-z_]+$")
"""Projections whose heads somebody may have repeated to serve them on more ranks: then every share has a twin."""
FUSED_ATTENTION = re.compile(r"qkv|query_key_value|c_attn|att(n|ention)\.in_proj")
"""Matrices of queries, keys and values: such a repetition covers some of their rows, so not all shares have twins."""
EXPERTS = 16
"""Experts of a stack that are examined, spread evenly."""
MIN_SHARE_BYTES = 512
"""Chance may repeat a share of fewer bytes."""
MIN_PREFIX_BYTES = 16
"""The beginning of a row of a share with fewer bytes says nothing."""


class RepeatedShare(msgspec.Struct, frozen=True):
    """Two shares of a matrix that hold the same bytes."""

    axis: str
    """``rows`` or ``columns``."""
    ranks: int
    """The number of shares."""
    first: int
    second: int
    """The numbers of the equal shares, from 0."""


class StoredMatrix(msgspec.Struct, frozen=True):
    """A matrix in the bytes of a tensor."""

    name: str
    offset: int
    """First byte within the tensor."""
    rows: int
    width: int
    """Bytes of a row."""
    columns: int


def find_repeated_share(ckpt: Checkpoint, name: str, *, rows: bool = True) -> RepeatedShare | None:
    """Return the first two equal quarters (or eighths) of a matrix, or of any examined expert of a stack.

    rows: whether to compare shares of the rows too; shares of the columns are always compared.
    Raises OSError if reading fails, Skip if the file has shrunk.
    """
    counts = RANK_COUNTS if FUSED_PAIR.search(name) else RANK_COUNTS[:-1]
    may_repeat = bool(KEYS_AND_VALUES.search(name))
    rows = rows and not FUSED_ATTENTION.search(name)
    for matrix in _iter_matrices(ckpt, name):
        for axis in ("rows", "columns") if rows else ("columns",):
            if (share := _find_along(ckpt, matrix, axis, counts, may_repeat)) is not None:
                return share
    return None


def _iter_matrices(ckpt: Checkpoint, name: str) -> Iterator[StoredMatrix]:
    """Yield the matrix that a tensor is, or some of the experts that it stacks; nothing for other shapes."""
    tensor = ckpt.tensors[name]
    if len(tensor.shape) not in (2, 3) or not prod(tensor.shape):
        return
    stacked = tensor.shape[0] if len(tensor.shape) == 3 else 1
    rows, columns = tensor.shape[-2:]
    nbytes = tensor.nbytes // stacked
    for member in sorted({index * stacked // min(stacked, EXPERTS) for index in range(min(stacked, EXPERTS))}):
        yield StoredMatrix(name, member * nbytes, rows, nbytes // rows, columns)


def _find_along(
    ckpt: Checkpoint, matrix: StoredMatrix, axis: str, counts: tuple[int, ...], may_repeat: bool
) -> RepeatedShare | None:
    length = matrix.rows if axis == "rows" else matrix.columns
    fitting = [
        ranks for ranks in counts if length % ranks == 0 and matrix.rows * matrix.width >= ranks * MIN_SHARE_BYTES
    ]
    if not fitting:
        return None
    prefixes = _read_prefixes(ckpt, matrix, axis, fitting[-1])
    if len(set(prefixes)) == len(prefixes):
        return None
    for ranks in fitting:
        heads = prefixes[:: fitting[-1] // ranks]
        pairs = [
            pair
            for pair in combinations(range(ranks), 2)
            if heads[pair[0]] == heads[pair[1]]
            and len(heads[pair[0]]) >= MIN_PREFIX_BYTES
            and len(set(heads[pair[0]])) > 2
            and _are_equal_shares(ckpt, matrix, axis, ranks, pair)
        ]
        if pairs and not (may_repeat and len({share for pair in pairs for share in pair}) == ranks):
            return RepeatedShare(axis, ranks, *pairs[0])
    return None


def _read_prefixes(ckpt: Checkpoint, matrix: StoredMatrix, axis: str, ranks: int) -> list[bytes]:
    """Return the first bytes of each share: of its first row, and of columns no more than the share is wide."""
    if axis == "rows":
        share = matrix.rows // ranks * matrix.width
        return [
            read_tensor_bytes(ckpt, matrix.name, matrix.offset + rank * share, min(PREFIX_BYTES, share))
            for rank in range(ranks)
        ]
    share, row = matrix.width // ranks, read_tensor_bytes(ckpt, matrix.name, matrix.offset, matrix.width)
    return [row[rank * share : rank * share + min(PREFIX_BYTES, share)] for rank in range(ranks)]


def _are_equal_shares(ckpt: Checkpoint, matrix: StoredMatrix, axis: str, ranks: int, pair: tuple[int, int]) -> bool:
    """Whether two shares hold the same bytes."""
    if axis == "rows":
        share = matrix.rows // ranks * matrix.width
        one, other = ((matrix.name, matrix.offset + rank * share) for rank in pair)
        return have_equal_bytes(ckpt, one, other, share)
    import numpy as np

    share, together = matrix.width // ranks, max(1, STEP_BYTES // matrix.width)
    for start in range(0, matrix.rows, together):
        number = min(together, matrix.rows - start)
        raw = read_tensor_bytes(ckpt, matrix.name, matrix.offset + start * matrix.width, number * matrix.width)
        rows = np.frombuffer(raw, np.uint8).reshape(number, matrix.width)
        first, second = (rows[:, rank * share : (rank + 1) * share] for rank in pair)
        if not np.array_equal(first, second):
            return False
    return True
