"""The faults of the matrix are well-formed, and docs/refit.md says what the results of the last runs are."""

from __future__ import annotations

import ast
import re

import pytest

from ckptcheck.linter.rule_loader import load_rules
from tests import matrix
from tests.fault_matrix.fault import ENGINES, PARTIES, Fault, load_faults
from tests.fault_matrix.grading import PARTY
from tests.fault_matrix.table import format_page, format_totals, read_results
from tests.matrix import describe_totals
from tests.paths import ROOT

FAULTS = load_faults()
INJECTORS = ROOT / "tests" / "fault_matrix" / "injectors"


def defined(*files: str) -> set[str]:
    """Return the functions and strings that stand in these injectors."""
    nodes = [node for file in files for node in ast.walk(ast.parse((INJECTORS / file).read_text(encoding="utf-8")))]
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    return functions | {str(node.value) for node in nodes if isinstance(node, ast.Constant)}


def test_there_are_at_least_eighty_on_each_engine() -> None:
    names = [str(fault) for fault in FAULTS]
    assert len(set(names)) == len(names)
    for engine in ENGINES:
        assert sum(engine in fault.engines for fault in FAULTS) >= 80


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_names_what_exists(fault: Fault) -> None:
    files = {
        "load": ("delivery.py", "loading.py"),
        "engine": ("inside.py",),
        "around": ("fault_vllm.py", "fault_sglang.py"),
        "trainer": ("fault_megatron.py",),
    }
    assert fault.at == "request" or fault.inject in defined(*files[fault.at])
    assert fault.party in PARTIES
    assert fault.party in PARTY
    assert set(fault.codes) & {rule.code for rule in load_rules()}
    for pattern in (fault.cause, fault.tensor, fault.part, fault.rank):
        re.compile(pattern)


def test_the_page_has_the_totals_of_the_last_runs() -> None:
    page = (ROOT / "docs" / "refit.md").read_text(encoding="utf-8")
    faults = read_results()
    assert "\n".join(format_totals(faults)) in page
    assert describe_totals(matrix.read_results()) in page
    assert "## Compute" in format_page(faults, FAULTS)
