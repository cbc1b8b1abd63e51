"""Fingerprints of rows."""

from __future__ import annotations

import numpy as np
import pytest

from ckptcheck.values.row_scan import row_fingerprints


@pytest.mark.parametrize("row", [2, 8, 12, 1152])
def test_marks_are_the_beginnings_of_rows(row: int) -> None:
    raw = np.random.default_rng(0).integers(0, 256, 5 * row, np.uint8)
    marks = row_fingerprints(raw, row)
    assert [marks[at : at + 8] for at in range(0, 40, 8)] == [
        bytes(raw[number * row :][: min(row, 8)]).ljust(8, b"\0") for number in range(5)
    ]
