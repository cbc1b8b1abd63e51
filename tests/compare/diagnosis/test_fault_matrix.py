"""The fault matrix: every fault that changes a byte is detected, and its cause is named first."""

from __future__ import annotations

import pytest

from ckptcheck.compare.diagnosis import diagnose
from tests.compare.diagnosis.fault_matrix import LAYOUTS, cells, expected_no_op, sides_of, sync_of
from tests.compare.diagnosis.faults import FAULTS, Fault
from tests.compare.diagnosis.sharded import Layout
from tests.factories.checkpoint_cases import ROOT

pytestmark = pytest.mark.slow

PAGE = " ".join((ROOT / "docs/diff.md").read_text(encoding="utf-8").split())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_right_cause_is_named_first(fault: Fault) -> None:
    found = cells(fault)
    assert [cell.no_op for cell in found] == [expected_no_op(fault, cell.layout) is not None for cell in found]
    changed = [cell for cell in found if not cell.no_op]
    assert changed
    assert all(cell.detected for cell in changed)
    assert [
        (str(cell.layout), [verdict.sentence for verdict in cell.verdicts]) for cell in changed if not cell.right
    ] == []


def test_the_page_counts_them() -> None:
    changed = sum(expected_no_op(fault, layout) is None for fault in FAULTS for layout in LAYOUTS)
    assert f"The tests inject {len(FAULTS)} faults" in PAGE
    assert (
        f"of the {changed} that change a byte, `diff` detects {changed} and names the right cause first for {changed}"
        in PAGE
    )
    assert f"from {('ten', 'eleven', 'twelve', 'thirteen', 'fourteen')[len(LAYOUTS) - 10]} layouts" in PAGE


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_nothing_is_named_on_equal_sides(layout: Layout) -> None:
    sync = sync_of(layout)
    assert diagnose(sides_of(sync.new, sync.export(), layout, sync.old)) == []
    assert diagnose(sides_of(sync.new, sync.export(), layout, sync.new)) == []
