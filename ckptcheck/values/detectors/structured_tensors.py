"""Recognises tensors that hold zeros by design: tables, masks, identities, triangular and block-diagonal matrices."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

WEIGHT = re.compile(r"(weight\d*|weight_[gv]|proj|kernel|original\d|lora_[ab])$|(^|\.)[wv]\d$|expert", re.IGNORECASE)
"""Names of learned weights. The experts of some families are one tensor whose name ends in another way."""
TABLE = re.compile(
    r"mask|(^|[._])(pe|pos|pos_?enc\w*|positions?|positional|position(al)?_?enc\w*|rope\w*|rotary\w*|sinusoid\w*|fb|melW?"
    r"|i?stft\w*|[ir]?d?fft|i?d[fc]t\w*|cqt\w*|fourier\w*|spectrogram\w*|(mel|forward|inverse|fixed)_(basis|filters?|fb|banks?)"
    r"|mel_?(scale|spec\w*)|filter_?banks?|windows?|hann\w*|hamming\w*|kaiser\w*|hadamard\w*|permutations?|identity)(\.|$)"
)
"""Names of tensors that are or may be computed: masks, positions as sines and cosines, Fourier bases, filter banks, windows."""
MIN_RUNS = 4
"""Fewer zero runs show no pattern."""
MAX_SELECTED = 1 / 64
"""A matrix that selects (a permutation, one-hot rows) has at most this share of numbers other than zero."""


def is_learned_weight(name: str) -> bool:
    """Whether the name says that a matrix is a learned weight, not a table or mask."""
    return bool(WEIGHT.search(name)) and not TABLE.search(name)


def is_diagonal_pattern(runs: Sequence[tuple[int, int]], row: int, element: int) -> bool:
    """Whether zero runs follow one another at the distance of a row and move across the columns.

    The zeros beside the diagonal of an identity, triangular or block-diagonal matrix do. Columns that a rank lost, in all
    rows or in some, stay in place.
    runs: [begin, end) within the matrix, in order.
    row, element: bytes of a row and of an element.
    """
    if len(runs) < MIN_RUNS or row <= 0:
        return False
    steps = (row - element, row, row + element)
    # The runs of a triangular matrix either begin in step or end in step.
    for ends in zip(*runs, strict=True):
        even = sum(later - earlier in steps for earlier, later in pairwise(ends))
        if 4 * even >= 3 * (len(runs) - 1):
            break
    else:
        return False
    places = Counter((begin % row, end % row) for begin, end in runs)
    return 5 * places.most_common(1)[0][1] <= 3 * len(runs)


def is_selection(runs: Sequence[tuple[int, int]], rows: int, nbytes: int) -> bool:
    """Whether almost all of a matrix is zero, in about as many runs as it has rows: a permutation, one-hot rows.

    Lost blocks lie together: they leave a few long runs.
    runs: [begin, end) within the matrix.
    """
    zeros = sum(end - begin for begin, end in runs)
    return len(runs) >= MIN_RUNS and 2 * len(runs) >= rows and nbytes - zeros <= MAX_SELECTED * nbytes


def is_fourier_row(shape: Sequence[int], begin: int, end: int) -> bool:
    """Whether zero elements are a row of sines in a Fourier basis of a convolution: frequency 0, or the highest.

    Such a kernel has one channel, and n + 2 rows for windows of n elements: the cosines of n / 2 + 1 frequencies, then the
    sines, or n / 2 + 1 rows of one of them. The window is zero at its ends, so the zeros may go on for a few elements.
    begin, end: elements from the start of the tensor.
    """
    if len(shape) != 3 or shape[1] != 1:
        return False
    rows, width = shape[0], shape[2]
    row, before = divmod(begin + width // 64, width)
    is_one_row = before <= width // 32 and abs(end - begin - width) <= width // 32
    return rows in (width + 2, width // 2 + 1) and is_one_row and row in (0, rows // 2 - 1, rows // 2, rows - 1)
