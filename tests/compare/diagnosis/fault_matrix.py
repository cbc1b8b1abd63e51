"""The fault matrix: each fault in each layout of ranks, and what the diagnosis says about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import numpy as np

from ckptcheck.compare.diagnosis import AttentionGeometry, DiagnosisInput, TensorBits, Verdict, diagnose
from tests.compare.diagnosis.faults import Fault, Sync
from tests.compare.diagnosis.sharded import HEAD_DIM, Layout, Weights

LAYOUTS = (
    Layout(), Layout(dtype="F32"), Layout(kv_heads=1), Layout(tp=2), Layout(tp=4, heads=8, kv_heads=4), Layout(pp=2),
    Layout(tp=2, pp=2, dtype="F32"), Layout(moe=True), Layout(moe=True, ep=2), Layout(moe=True, ep=4, dtype="F32"),
    Layout(moe=True, tp=2, ep=2), Layout(moe=True, tp=2, pp=2, ep=2), Layout(moe=True, tp=2, pp=4, ep=2, dtype="F32"),
)  # fmt: skip

NO_OP = (
    (r"^TP: ", lambda layout: layout.tp == 1, "with one tensor-parallel rank there is nothing to put in order"),
    (r"pipeline|stage|layers in another", lambda layout: layout.pp == 1, "with one pipeline stage there is no offset"),
    (r"expert", lambda layout: layout.ep == 1, "with one expert-parallel rank there is no offset"),
    (r"^QKV", lambda layout: layout.kv_heads == 1, "with one KV group the interleave is the plain order"),
    (r"round trip bf16", lambda layout: layout.dtype == "BF16", "bf16 is bf16 already"),
)
"""Cells in which a fault changes nothing: name, where, why."""


@dataclass(frozen=True)
class Cell:
    """One fault in one layout. no_op: it changed no byte."""

    fault: Fault
    layout: Layout
    no_op: bool
    verdicts: tuple[Verdict, ...] = ()

    @property
    def detected(self) -> bool:
        """Whether anything was said."""
        return bool(self.verdicts)

    @property
    def right(self) -> bool:
        """Whether the first cause named is the right one, and nothing is named that is not there."""
        if not self.verdicts:
            return False
        first = self.verdicts[0].causes
        return first[0] in self.fault.causes and all(set(v.causes) <= set(self.fault.causes) for v in self.verdicts)


def expected_no_op(fault: Fault, layout: Layout) -> str | None:
    """Why a fault changes nothing here, None if it does."""
    return next((why for name, where, why in NO_OP if re.search(name, fault.name) and where(layout)), None)


def sides_of(expected: Weights, actual: Weights, layout: Layout, previous: Weights | None = None) -> DiagnosisInput:
    """Hand both sides over as a caller would."""

    def readers(weights: Weights) -> dict[str, object]:
        return {name: lambda tensor=tensor: TensorBits(layout.dtype, tensor) for name, tensor in weights.items()}

    geometry = AttentionGeometry(layout.heads, layout.kv_heads, HEAD_DIM)
    return DiagnosisInput(readers(expected), readers(actual), readers(previous or {}), geometry)  # type: ignore[arg-type]


def same(first: Weights, second: Weights) -> bool:
    """Whether two exports hold the same bytes under the same names."""
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


@cache
def sync_of(layout: Layout) -> Sync:
    """The weights of a layout, made once."""
    return Sync.of(layout)


def cell(fault: Fault, layout: Layout) -> Cell:
    """Inject and diagnose."""
    sync = sync_of(layout)
    actual = fault.apply(sync)
    if same(sync.new, actual):
        return Cell(fault, layout, no_op=True)
    sides = sides_of(sync.new, actual, layout, sync.old if fault.stale else None)
    return Cell(fault, layout, False, tuple(diagnose(sides)))


@cache
def cells(fault: Fault) -> tuple[Cell, ...]:
    """One fault in every layout."""
    return tuple(cell(fault, layout) for layout in LAYOUTS)
