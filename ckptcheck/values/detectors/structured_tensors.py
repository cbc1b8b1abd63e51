"""Recognises tensors that hold zeros by design: tables, masks, identities, triangular and block-diagonal matrices."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

WEIGHT = re.compile(r"(weight\d*|weight_[gv]|proj|kernel|original\d|lora_[ab])$|(^|\.)[wv]\d$|expert", re.IGNORECASE)
"""Names of learned weights. The experts of some families are one tensor whose name ends in another way."""
TABLE = re.compile(
    r"mask|(^|[._])(pe|pos|pos_?enc\w*|positions?|positional|position(al)?_?enc\w*|rope\w*|rotary\w*|sinusoid\w*|fb|melW?)(\.|$)"
)
"""Names of tensors that are or may be computed: masks, positions as sines and cosines, filter banks."""
MIN_RUNS = 4
"""Zero runs that it takes to recognise a pattern."""


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
