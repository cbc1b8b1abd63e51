"""A real model whose weights, or whose layers, are zero or one number: one sentence says so, and no rule says it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from tests.factories.value_cases import copy_with_values, run_all_rules

pytestmark = pytest.mark.slow

ONE, FIFTIETH = b"\x80\x3f", b"\xa4\x3c"
FILLS: dict[str, Callable[[str, bool], bytes | None]] = {
    "every weight is zero (272 tensors)": lambda name, is_matrix: b"\0\0",
    "every matrix is zero (211 matrices)": lambda name, is_matrix: b"\0\0" if is_matrix else ONE,
    "every matrix holds the number 0.02 throughout (211 matrices)": lambda name, is_matrix: FIFTIETH,
    "every matrix of these layers is zero (210 matrices)": lambda name, is_matrix: (
        b"\0\0" if ".layers." in name else None
    ),
}
"""Beginning of the message → name of a tensor and whether it is a matrix → the BF16 number that fills it; None to leave it."""


@pytest.mark.parametrize("message", FILLS)
def test_one_sentence_speaks_for_the_whole(smollm2: Path, tmp_path: Path, message: str) -> None:
    fill, values = FILLS[message], {}
    for name, tensor in open_checkpoint(str(smollm2)).tensors.items():
        if (number := fill(name, len(tensor.shape) > 1)) is not None:
            values[name] = number * (tensor.nbytes // 2)
    report = run_all_rules(copy_with_values(smollm2, tmp_path / "blank", values))
    assert not report.crashed
    assert [finding.code for finding in report.findings] == ["VAL016"]
    assert report.findings[0].message.startswith(message)
