"""Makes a matrix of given errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptcheck.parity.gap import Gap
from ckptcheck.parity.gates import Gates
from ckptcheck.parity.matrix.cells import Cell
from ckptcheck.parity.matrix.trace import MatrixTrace


def measured(table: Mapping[str, Any]) -> MatrixTrace:
    """`errors`: length → mult_prob_error, by two runs `spread` apart; `floor` of the pair; `gates`."""
    done = {}
    for length, error in table["errors"].items():
        for repeat in (0, 1):
            moved = error + table.get("spread", 0.0) * (2 * repeat - 1)
            cell = Cell("vllm", "transformers", int(length), "real", "greedy", 1, "engine", repeat)
            done[cell] = Gap(32, moved, moved - 1, moved - 1, 0.0, moved)
    floor = {"transformers:vllm": table["floor"]} if "floor" in table else {}
    return MatrixTrace("matrix", done, floor=floor, gates=Gates(**table.get("gates", {})))
