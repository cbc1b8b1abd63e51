"""Makes a matrix of given errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ckptcheck.live.experiments.matrix.trace import Cell, MatrixTrace
from ckptcheck.rollouts.gap_summary import GapSummary
from ckptcheck.rollouts.thresholds import Thresholds
from tests.factories.case_table import CaseTable


class MatrixCase(CaseTable, kw_only=True):
    """A case of a rule on a matrix."""

    errors: dict[str, float]
    """Length → mult_prob_error, the mean of two runs."""
    spread: float = 0.0
    """By how much each of the two runs is off that mean."""
    floor: float | None = None
    """The noise floor of the pair, where one was measured."""
    gates: dict[str, Any] = {}
    """Limits, see parity/thresholds.py."""


def build_matrix(table: Mapping[str, Any]) -> MatrixTrace:
    """Return the matrix of a case."""
    case = msgspec.convert(table, MatrixCase)
    done = {}
    for length, error in case.errors.items():
        for repeat in (0, 1):
            moved = error + case.spread * (2 * repeat - 1)
            cell = Cell("vllm", "transformers", int(length), "real", "greedy", 1, "engine", repeat)
            done[cell] = GapSummary(32, moved, moved - 1, moved - 1, 0.0, moved)
    floor = {} if case.floor is None else {"transformers:vllm": case.floor}
    return MatrixTrace("matrix", done, floor=floor, thresholds=Thresholds(**case.gates))
