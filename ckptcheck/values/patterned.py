"""Tensors in which zeros stand by design: tables, masks, identities, triangular and block-diagonal matrices."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

WEIGHT = re.compile(r"(weight\d*|weight_[gv]|proj|kernel|original\d|lora_[ab])$|(^|\.)[wv]\d$|expert", re.IGNORECASE)
"""What is learned, by its name; the experts of some families are one tensor whose name ends otherwise."""
TABLE = re.compile(
    r"mask|(^|[._])(pe|pos|pos_?enc\w*|positions?|positional|position(al)?_?enc\w*|rope\w*|rotary\w*|sinusoid\w*|fb|melW?)(\.|$)"
)
"""What is computed, or may be: masks, positions as sines and cosines, filter banks."""
FEWEST = 4
"""Runs of zeros from which a pattern can be told."""


def is_learned(name: str) -> bool:
    """Whether a matrix is a weight by its name, and no table or mask."""
    return bool(WEIGHT.search(name)) and not TABLE.search(name)


def steps_by_rows(runs: Sequence[tuple[int, int]], row: int, element: int) -> bool:
    """Whether runs of zero bytes follow one another at the distance of a row and move across the columns on their way.

    So they lie beside the diagonal of an identity, of a triangular and of a block-diagonal matrix. Columns that a rank
    lost, in all rows or some, stay where they are. runs: [begin, end) within the matrix, in order. row, element: bytes.
    """
    if len(runs) < FEWEST or row <= 0:
        return False
    steps = (row - element, row, row + element)
    for ends in zip(*runs, strict=True):  # the runs of a triangular matrix begin, or end, in step
        even = sum(later - earlier in steps for earlier, later in pairwise(ends))
        if 4 * even >= 3 * (len(runs) - 1):
            break
    else:
        return False
    places = Counter((begin % row, end % row) for begin, end in runs)
    return 5 * places.most_common(1)[0][1] <= 3 * len(runs)
