"""Finds matrices and vectors that hold a share of their rows or columns, or a head, twice, after a wrong merge of ranks.

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

from ckptcheck.checkpoint.config import HEADS, HIDDEN
from ckptcheck.values.detectors.byte_compare import (
    PREFIX_BYTES,
    STEP_BYTES,
    have_equal_bytes,
    is_cleared,
    map_pieces,
    read_patterns,
    read_tensor_bytes,
)
from ckptcheck.values.detectors.matrix_samples import FLOATS
from ckptcheck.values.detectors.roles import KEYS, is_matrix, is_scale, starts_at_zero
from ckptcheck.values.detectors.structured_tensors import TABLE
from ckptcheck.values.first_looks import COLUMNS, ROWS, choose_grid
from ckptcheck.values.stats import TensorStats

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
MIN_LAYERS, MAX_SHARE = 4, 1 / 4
"""Fewer layers do not show what is usual. Layers with copies of heads are an exception up to this share of the layers."""

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


def find_share_length(ckpt: Checkpoint, name: str) -> int:
    """Return the rows of a share that an embedding or head seems to hold twice, by the beginnings of its rows; 0 without one.

    A share that mostly repeats one row (reserved tokens) does not count.
    """
    import numpy as np

    fingerprints = np.frombuffer(ckpt.values.row_fingerprints.get(name, b""), "<u8")
    for ranks in (2, 4, 8):
        rows, rest = divmod(len(fingerprints), ranks)
        shares = fingerprints.reshape(ranks, rows) if rows and not rest else ()
        for first, second in combinations(shares, 2):
            if np.array_equal(first, second) and 2 * len(np.unique(first)) > rows:
                return rows
    return 0


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
    for ranks in fitting:
        pairs = list(_iter_pairs(ckpt, matrix, axis, prefixes[:: fitting[-1] // ranks]))
        if pairs and not (may_repeat and len({share for pair in pairs for share in pair}) == ranks):
            return RepeatedShare(axis, ranks, *pairs[0])
    return None


def _iter_pairs(ckpt: Checkpoint, matrix: StoredMatrix, axis: str, prefixes: list[bytes]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of each two equal shares. prefixes: the first bytes of each share; zeros do not count."""
    if len(set(prefixes)) == len(prefixes):
        return
    for first, second in combinations(range(len(prefixes)), 2):
        prefix = prefixes[first]
        if (
            prefix == prefixes[second]
            and len(prefix) >= MIN_PREFIX_BYTES
            and len(set(prefix)) > 2
            and _are_equal_shares(ckpt, matrix, axis, len(prefixes), (first, second))
        ):
            yield first, second


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


class RepeatedHead(msgspec.Struct, frozen=True):
    """Two heads of a projection that hold the same bytes."""

    name: str
    first: int
    second: int
    """The numbers of the equal heads, from 0."""
    heads: int
    layers: int
    """How many layers have the projection."""


def find_repeated_heads(ckpt: Checkpoint) -> list[RepeatedHead]:
    """Return the first two equal heads of each projection of keys or values, if only few layers have equal heads.

    A model whose key-value heads were repeated, to serve them on more ranks, has copies in every layer. That is sound.
    Raises Skip if a file has shrunk, OSError if reading fails.
    """
    names_by_role, width = list_headed(ckpt)

    def find_pair(name: str) -> tuple[int, int] | None:
        (matrix,), heads = _iter_matrices(ckpt, name), ckpt.tensors[name].shape[0] // width
        if len(choose_grid((matrix.rows, matrix.width)).rows) % heads == 0 and is_cleared(ckpt, name, ROWS):
            return None  # each head begins with a share of the rows, and these all differ
        return next(_iter_pairs(ckpt, matrix, "rows", _read_prefixes(ckpt, matrix, "rows", heads)), None)

    found = []
    for names in names_by_role.values():
        pairs = {name: pair for name, pair in zip(names, map_pieces(ckpt, find_pair, names), strict=True) if pair}
        if len(pairs) <= MAX_SHARE * len(names):
            found += [
                RepeatedHead(name, *pair, ckpt.tensors[name].shape[0] // width, len(names))
                for name, pair in pairs.items()
            ]
    return found


def list_headed(ckpt: Checkpoint) -> tuple[dict[str, list[str]], int]:
    """Return the projections of keys and of values that can be judged, by role, and the rows of a head."""
    config, stack = ckpt.config, ckpt.components.stack
    if config is None or stack is None:
        return {}, 0
    heads, hidden = config.integer(*HEADS), config.integer(*HIDDEN)
    width = config.integer("head_dim") or (hidden // heads if heads and hidden else 0)
    names_by_role: dict[str, list[str]] = {}
    for layer, roles in sorted(stack.layers.items()):
        for role in sorted(roles):
            if KEYS.search(role) and _has_heads(ckpt, name := stack.full_name(layer, role), width):
                names_by_role.setdefault(role, []).append(name)
    return {role: names for role, names in names_by_role.items() if len(names) >= MIN_LAYERS}, width


def _has_heads(ckpt: Checkpoint, name: str, width: int) -> bool:
    """Whether a tensor is a matrix of two heads or more."""
    stats = ckpt.values.tensors.get(name)
    return (
        stats is not None
        and name in ckpt.tensor_to_file
        and is_matrix(stats)
        and len(stats.shape) == 2
        and not (stats.constant or stats.zero)
        and width > 0
        and stats.shape[0] % width == 0
        and stats.shape[0] > width
    )


def find_repeated_vectors(ckpt: Checkpoint) -> list[str]:
    """Return the vectors whose halves are equal, if they are several; none of one number or a few.

    Only those are read that the value pass does not clear. Raises OSError if reading fails.
    """
    suspects = [name for name, stats in ckpt.values.tensors.items() if _is_judged_vector(ckpt, stats)]
    repeats = map_pieces(ckpt, lambda name: _repeats_half(ckpt, name), suspects)
    found = [name for name, repeated in zip(suspects, repeats, strict=True) if repeated]
    return found if len(found) >= MIN_VECTORS else []


def _is_judged_vector(ckpt: Checkpoint, stats: TensorStats) -> bool:
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
