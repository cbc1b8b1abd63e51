"""The cases of rules about conformance: what became of faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ckptcheck.live.conformance.faults import FaultKind
from ckptcheck.live.conformance.trace import Answer, ConformanceTrace, Outcome
from tests.factories.case_table import CaseTable, StrictTable


class OutcomeTable(StrictTable, kw_only=True):
    """What became of one fault."""

    kind: FaultKind = "drop"
    place: str = ""
    answer: Answer = "refused"
    detail: str = ""
    recovery: str = "a sound update"
    is_stuck: bool = False
    is_wrong_afterwards: bool = False


class ConformanceCase(CaseTable, kw_only=True):
    """A case of a rule on a conformance run."""

    outcomes: list[OutcomeTable] = []
    problems: list[str] = []


def build_conformance(table: Mapping[str, Any]) -> ConformanceTrace:
    """Return the evidence of a case."""
    case = msgspec.convert(table, ConformanceCase)
    outcomes = tuple(Outcome(**msgspec.structs.asdict(each)) for each in case.outcomes)
    return ConformanceTrace("toy:Transport", "5 tensors in 4 buckets", outcomes, tuple(case.problems), 5, 20)
