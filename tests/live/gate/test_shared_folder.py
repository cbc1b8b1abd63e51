"""A folder for a gate's results may be shared: what somebody else left in it ends no gate with a traceback, and holds none up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from ckptcheck import CkptcheckError
from ckptcheck.linter.stored_report import load_report
from ckptcheck.live.gate.run_gate import lock_folder
from tests.factories.checkpoint_cases import CHECKPOINTS

SOUND = CHECKPOINTS / "tiny-llama"
JOB = "trainer:\n  n_gpus_per_node: 8\nactor_rollout_ref:\n  rollout:\n    name: vllm\n"


def put_pipe(path: Path) -> None:
    os.mkfifo(path)


def put_link(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize("put", [put_pipe, put_link])
def test_a_lock_that_is_no_file(put: Any, tmp_path: Path) -> None:
    """A gate would wait for a reader of the pipe, and make a file where the link leads."""
    put(tmp_path / "lock")
    with pytest.raises(CkptcheckError, match="is no regular file"), lock_folder(tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("put", [put_pipe, Path.mkdir])
def test_a_page_that_is_no_file(put: Any, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "results").mkdir()
    put(tmp_path / "results/report.html")
    with pytest.raises(CkptcheckError, match=r"report\.html: it is no regular file"):
        ckptcheck.gate(tmp_path / "job.yaml", stages=["preflight"], folder=tmp_path / "results")


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return ckptcheck.scan(SOUND, consumers=["vllm"]).to_dict()


FINDING = {"code": "A", "name": "b", "severity": "error", "message": "c"}
LIES: dict[str, dict[str, Any]] = {
    "a report whose findings are numbers": {"findings": [{"code": 1, "name": 2, "severity": "error", "message": 3}]},
    "a severity that is none": {"findings": [{**FINDING, "severity": "grave"}]},
    "a place that is a list": {"findings": [{**FINDING, "file": ["x"]}]},
    "names that are no texts": {"findings": [{**FINDING, "names": [1]}]},
    "counts that are texts": {"counts": {"files": "x"}},
    "counts that no disk has": {"counts": {"bytes": 10**400}},
    "counts below zero": {"counts": {"bytes": -1}},
    "codes that are objects": {"passed": [{}]},
    "reasons that are lists": {"skipped": [{"code": "A", "reason": []}]},
    "an error that is an object": {"error": {"a": 1}},
    "consumers without a verdict": {"consumers": [{"consumer": "vllm"}]},
    "consumers that are texts": {"consumers": ["vllm"]},
    "sections with a row that is a number": {"sections": [{"title": "t", "rows": [5]}]},
    "sections with cells that are lists": {"sections": [{"title": "t", "columns": ["c"], "rows": [[[1]]]}]},
    "a title that is null": {"sections": [{"title": None}]},
    "what was read as an object": {"read": {"a": {"b": 1}}},
    "an identity that is a number": {"identity": {"a": 1}},
    "a known number that is a text": {"known": "x"},
    "a target that is null": {"target": None},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_stored_report_has_values_that_reporters_can_write(lie: str, report: dict[str, Any]) -> None:
    assert load_report(report).to_dict() == report
    with pytest.raises(CkptcheckError, match="it is no report of ckptcheck"):
        load_report({**report, **LIES[lie]})
