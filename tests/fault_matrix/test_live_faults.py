"""A few faults of the matrix, one of each family, on real engines. All of them: ``make faults``."""

from __future__ import annotations

import pytest

from tests.conftest import needs_engine
from tests.fault_matrix.__main__ import USUAL, run_engine
from tests.fault_matrix.fault import load_faults
from tests.fault_matrix.grading import Grade

CHOSEN = (
    "exporter/two-experts-exchanged",
    "transport/lowest-bit-flipped",
    "loader/key-part-skipped-later",
    "engine state/graph-keeps-old-weight",
    "compute/norm-epsilon",
    "trainer/attention-not-stepped",
)
"""Their causes, tensors and parts are told in different ways. Two of them need another trainer's weights, which proves that cold
loads are made anew."""


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("vllm", marks=[pytest.mark.engine, pytest.mark.xdist_group("vllm-cpu")]),
        # a trial with SGLang takes three times as long
        pytest.param("sglang", marks=[pytest.mark.engine, pytest.mark.matrix, pytest.mark.xdist_group("sglang-cpu")]),
    ],
)
def test_faults_are_detected_and_their_causes_named(engine: str) -> None:
    needs_engine(engine)
    needs_engine("megatron")
    faults = [fault for fault in load_faults() if str(fault) in CHOSEN]
    assert len(faults) == len(CHOSEN)
    sound, *grades = run_engine(engine, faults, verbose=False)
    assert isinstance(sound, dict)
    assert not set(sound["codes"]) - USUAL[engine]
    for fault, each in zip(faults, grades, strict=True):
        assert isinstance(each, Grade)
        assert each.detected in ("yes", "warning"), fault
        assert (each.cause, each.tensor) == ("right", "yes"), (fault, each.messages)
