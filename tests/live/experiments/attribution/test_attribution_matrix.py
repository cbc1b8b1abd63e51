"""The right cause is named first in at least nine of ten faults, and none on healthy runs."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.experiments.attribution.experiment import RecordedBackend
from ckptcheck.live.experiments.attribution.experiments import EXPERIMENTS
from ckptcheck.live.experiments.attribution.search import Attribution, run_search
from tests.live.experiments.attribution import twin as matrix

pytestmark = pytest.mark.slow

RULES = [rule for rule in rule_loader.load_rules() if rule.on == "attribution"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    matrix.torch.set_num_threads(1)


@pytest.mark.parametrize("fault", matrix.FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_named(fault: matrix.Fault) -> None:
    name = "qwen3-moe" if "qwen3-moe" in fault.models and not fault.also else fault.models[-1]
    found = matrix.search_twin(fault, name, 0)
    report = run_rules(matrix.told(found), RULES)
    if not fault.layer:
        assert report.verdict == "clean", report.findings
        return
    named = [step.name for step in found.causes]
    assert named[0] == fault.experiment
    assert set(named[1:]) == ({fault.also} if fault.also else set())
    assert found.causes[0].layer == fault.layer
    assert {finding.code for finding in report.findings} == {"ATT001"}


def test_nine_of_ten_are_right() -> None:
    seen = []
    for fault in matrix.FAULTS:
        if not fault.experiment:
            continue
        causes = matrix.search_twin(fault, "llama" if "llama" in fault.models else fault.models[0], 1).causes
        seen.append(bool(causes) and causes[0].name in (fault.experiment, fault.also))
    assert sum(seen) >= 0.9 * len(seen)


def test_files_alone_name_what_files_can_tell() -> None:
    by_name = {fault.name: fault for fault in matrix.FAULTS}
    for name in ("logprobs of the next token", "answers of tools are counted", "half of the tokens lag"):
        world = RecordedBackend(matrix.Twin(by_name[name], "llama", 0).rollouts)
        assert run_search(world, EXPERIMENTS, 1e-4).causes[0].name == by_name[name].experiment
    world = RecordedBackend(matrix.Twin(by_name["weights of the step before"], "llama", 0).rollouts)
    found = run_search(world, EXPERIMENTS, 1e-4)
    assert not found.causes
    report = run_rules(Attribution("files", found, has_measured_floor=True), RULES)
    assert [finding.code for finding in report.findings] == ["ATT001"]
    assert "weights" in report.findings[0].message
