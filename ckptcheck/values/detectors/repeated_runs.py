"""Finds runs of equal neighbouring rows of an embedding or a head.

Sound models have equal rows, of tokens that training never met: runs of five in SmolLM2-135M and of three in Gemma 3 270M. The
value pass knows the first bytes of each row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ckptcheck.values.detectors.byte_compare import have_equal_bytes
from ckptcheck.values.detectors.token_usage import find_ordinary_rows
from ckptcheck.values.dtypes import FORMATS

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

MIN_ROWS = 64
"""Fewer equal neighbours may be an accident."""
COMPARED_ROWS = 8
"""Rows of a run, spread evenly, that are compared byte by byte."""
MIN_ORDINARY = 1 / 2
"""Share of a run's tokens that have to be ordinary ones: rows of reserved tokens may all start from one."""


class RepeatedRun(msgspec.Struct, frozen=True):
    """Neighbouring rows that hold the same bytes."""

    first: int
    last: int
    words: tuple[int, ...]
    """Those of ordinary tokens."""


def find_repeated_runs(ckpt: Checkpoint, name: str) -> list[RepeatedRun]:
    """Return the runs of at least 64 equal rows, most of them of ordinary tokens; none if no tokenizer tells which.

    Rows of one number throughout do not count, since other rules report them. Raises Skip if the file has shrunk,
    OSError if reading fails.
    """
    import numpy as np

    tensor = ckpt.tensors[name]
    if not tensor.has_rows or name not in ckpt.values.row_fingerprints:
        return []
    fingerprints = np.frombuffer(ckpt.values.row_fingerprints[name], "<u8")
    row_max = np.frombuffer(ckpt.values.row_max[name], FORMATS[tensor.dtype].unsigned)
    is_copy = (fingerprints[1:] == fingerprints[:-1]) & (row_max[1:] == row_max[:-1]) & (row_max[1:] > 0)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], is_copy, [False])).astype(np.int8)))
    size = tensor.nbytes // tensor.shape[0]
    runs = []
    for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        rows = range(first, last + 1)
        if len(rows) < MIN_ROWS:
            continue
        words = tuple(find_ordinary_rows(ckpt, rows))
        others = [first + number * (last - first) // COMPARED_ROWS for number in range(1, COMPARED_ROWS + 1)]
        if len(words) >= MIN_ORDINARY * len(rows) and all(
            have_equal_bytes(ckpt, (name, first * size), (name, other * size), size) for other in others
        ):
            runs.append(RepeatedRun(first, last, words))
    return runs
