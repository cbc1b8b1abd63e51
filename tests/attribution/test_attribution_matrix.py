"""The right cause is named first in at least nine of ten faults, and none on healthy runs."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import twin as matrix

from ckptcheck import pack
from ckptcheck.attribution.ladder import climb
from ckptcheck.attribution.recorded import Recorded
from ckptcheck.attribution.rungs import RUNGS
from ckptcheck.attribution.trace import Attribution
from ckptcheck.run import run

RULES = [rule for rule in pack.load() if rule.on == "attribution"]
CODES = {
    "semantics": "ATT001", "path": "ATT002", "precision": "ATT003", "routing": "ATT004", "weights": "ATT005",
    "objective": "ATT006",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    matrix.torch.set_num_threads(1)


@pytest.mark.parametrize("fault", matrix.FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_named(fault: matrix.Fault) -> None:
    name = "qwen3-moe" if "qwen3-moe" in fault.models and not fault.also else fault.models[-1]
    found = matrix.climbed(fault, name, 0)
    report = run(matrix.told(found), RULES)
    if not fault.layer:
        assert report.verdict == "clean", report.findings
        return
    named = [step.name for step in found.causes]
    assert named[0] == fault.rung
    assert set(named[1:]) == ({fault.also} if fault.also else set())
    assert CODES[fault.layer] in {finding.code for finding in report.findings}
    assert not {finding.code for finding in report.findings} & {"ATT007", "ATT008"}


def test_nine_of_ten_are_right() -> None:
    seen = []
    for fault in matrix.FAULTS:
        if not fault.rung:
            continue
        causes = matrix.climbed(fault, "llama" if "llama" in fault.models else fault.models[0], 1).causes
        seen.append(bool(causes) and causes[0].name in (fault.rung, fault.also))
    assert sum(seen) >= 0.9 * len(seen)


def test_files_alone_name_what_files_can_tell() -> None:
    by_name = {fault.name: fault for fault in matrix.FAULTS}
    for name in ("logprobs of the next token", "answers of tools are counted", "half of the tokens lag"):
        world = Recorded(matrix.Twin(by_name[name], "llama", 0).rollouts)
        assert climb(world, RUNGS, 1e-4).causes[0].name == by_name[name].rung
    world = Recorded(matrix.Twin(by_name["weights of the step before"], "llama", 0).rollouts)
    found = climb(world, RUNGS, 1e-4)
    assert not found.causes
    report = run(Attribution("files", found, measured=True), RULES)
    assert [finding.code for finding in report.findings] == ["ATT007"]
    assert "weights" in report.findings[0].message
