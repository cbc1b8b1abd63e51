"""Every verb under every fault of the machine; docs/faults-while-running.md is the table for people."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.faults.table import FAULTS, OLD, VERBS, find_wrong, run_with_fault
from tests.paths import ROOT

pytestmark = pytest.mark.slow
JOB = "trainer:\n  n_gpus_per_node: 8\nactor_rollout_ref:\n  rollout:\n    name: vllm\n"


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("failing reads need a C compiler")
    path = tmp_path_factory.mktemp("shim") / "failing_reads.so"
    source = Path(__file__).with_name("failing_reads.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(path), str(source), "-ldl"], check=True)
    return path


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", folder / "sound")
    (folder / "job.yaml").write_text(JOB)
    (folder / "report").write_bytes(OLD)
    return folder


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_under_every_fault(verb: str, inputs: Path, shim: Path, tmp_path: Path) -> None:
    wrong = {}
    for name, fault in FAULTS.items():
        here = Path(shutil.copytree(inputs, tmp_path / name.replace(" ", "-").replace("/", "")))
        answer = run_with_fault(here, verb, fault, shim)
        if found := find_wrong(here, verb, fault, answer):
            wrong[name] = found
    assert not wrong


def test_the_page_lists_every_fault_and_verb() -> None:
    page = (ROOT / "docs" / "faults-while-running.md").read_text(encoding="utf-8")
    assert [name for name in (*FAULTS, *VERBS) if name not in page] == []
