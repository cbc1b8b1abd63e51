"""The fault matrix: every fault that changes a byte is detected, and its cause is named first."""

from __future__ import annotations

import re

import pytest

from ckptcheck.compare.diagnosis import diagnose
from tests.compare.diagnosis.fault_matrix import LAYOUTS, NO_OP, cells, expected_no_op, row, sides_of, sync_of
from tests.compare.diagnosis.faults import FAULTS, Fault
from tests.compare.diagnosis.sharded import Layout
from tests.factories.checkpoint_cases import ROOT

pytestmark = pytest.mark.slow

README = (ROOT / "docs/diagnosis.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (.+?) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_right_cause_is_named_first(fault: Fault) -> None:
    found = cells(fault)
    assert [cell.no_op for cell in found] == [expected_no_op(fault, cell.layout) is not None for cell in found]
    changed = [cell for cell in found if not cell.no_op]
    assert changed
    assert all(cell.detected for cell in changed)
    wrong = [(str(cell.layout), [verdict.sentence for verdict in cell.verdicts]) for cell in changed if not cell.right]
    assert len(wrong) <= 0.05 * len(changed), wrong
    assert row(fault.name, found) in README.splitlines(), "make bench prints the table"


def test_the_table_adds_up() -> None:
    *rows, (name, *total) = ROW.findall(README)
    assert [row[0] for row in rows] == [fault.name for fault in FAULTS]
    assert name == "**all**"
    assert [sum(int(row[number]) for row in rows) for number in (1, 2, 3, 4)] == [int(number) for number in total]
    cells, _, detected, right = map(int, total)
    assert detected == cells
    assert right >= 0.95 * cells


def test_cells_without_effect_are_explained() -> None:
    for _, _, why in NO_OP:
        assert why in README


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_nothing_is_named_on_equal_sides(layout: Layout) -> None:
    sync = sync_of(layout)
    assert diagnose(sides_of(sync.new, sync.export(), layout, sync.old)) == []
    assert diagnose(sides_of(sync.new, sync.export(), layout, sync.new)) == []
