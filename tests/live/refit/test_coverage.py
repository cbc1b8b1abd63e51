"""What a trial could not look at is said, and ends nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.refit import diagnose_sync, trace_queries
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.process.errors import WorkerDied
from tests.doubles.fake_engine import FakeEngine
from tests.factories.refit_cases import run_trial_case

RULES = [rule for rule in rule_loader.load_rules() if rule.on == "refit"]
OUT = "model.layers.1.self_attn.o_proj.weight"
CAST = {"faults": [{"kind": "cast", "name": OUT}], "settings": {"steps": 0}}


def lines(report: Report | RefitTrace, title: str) -> list[Any]:
    return [
        each
        for section in report.sections
        if section.title.startswith(title)
        for each in (*section.rows, *section.lines)
    ]


def test_what_was_not_overwritten_is_reported_by_reason(tmp_path: Path) -> None:
    assert lines(run_trial_case({}, tmp_path / "sound"), "not overwritten") == []
    report = run_rules(run_trial_case({"faults": [{"kind": "unmarked"}], "empty": [OUT]}, tmp_path / "trial"), RULES)
    empty, unmarked = lines(report, "not overwritten")
    assert empty == ("it is empty", 1, OUT)
    reason, number, names = unmarked  # the row has all names, for programs; people read the brief line
    assert (reason, number, len(names.split(", "))) == ("nothing unusual can be written there", 17, 17)
    section = next(section for section in report.sections if section.title.startswith("not overwritten"))
    assert section.brief[1] == (
        "17 tensors: lm_head.packed, lm_head.weight, model.embed_tokens.weight and 14 more (nothing unusual can be written there)"
    )
    assert {"REF001"} <= {code for code, _ in report.skipped}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (WorkerDied("the reference died", ("MemoryError",)), "the reference died"),
        (CkptcheckError("no memory to start it"), "no memory to start it"),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
    ],
)
def test_a_diagnosis_that_fails_leaves_the_finding_and_goes_on(
    error: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: FakeEngine, names: Any, folder: Path) -> Path:
        raise error

    monkeypatch.setattr(FakeEngine, "fetch_tensors", failing)
    trace = run_trial_case({**CAST, "settings": {}}, tmp_path / "trial")
    report = run_rules(trace, RULES)
    assert not trace.failed_phases
    assert [sync.step for sync in trace.syncs] == [0, 1, 1]
    assert "REF003" in {finding.code for finding in report.findings}
    assert lines(report, "causes that were not looked for")[0] == f"sync 1: {said}"


def test_a_buffer_that_cannot_be_read_was_not_meddled_with(tmp_path: Path) -> None:
    trace = run_trial_case({"empty": ["model.rotary_emb.cos_sin_cache"]}, tmp_path / "trial")
    assert trace_queries.modified_buffers(trace) == set()
    assert {"REF005"} <= set(run_rules(trace, RULES).passed)


def test_only_so_many_bytes_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[list[str]] = []
    own = FakeEngine.fetch_tensors

    def seen(self: Engine, names: Any, folder: Path) -> Path:
        fetched.append([name for _, name in names])
        return own(self, names, folder)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeEngine, "fetch_tensors", seen)
    assert run_trial_case(CAST, tmp_path / "all").syncs[0].diagnoses
    assert [len(names) for names in fetched] == [3, 1], "the layers beside it, to know one by the other"
    fetched.clear()
    monkeypatch.setattr(diagnose_sync, "MAX_TOTAL_BYTES", 2 * 8 * 8 * 4)
    assert run_trial_case(CAST, tmp_path / "two").syncs[0].diagnoses
    assert fetched == [[OUT, "model.layers.0.self_attn.o_proj.weight"], [OUT]]
    monkeypatch.setattr(diagnose_sync, "MAX_TENSOR_BYTES", 8)
    (sync,) = run_trial_case(CAST, tmp_path / "none").syncs
    assert (sync.diagnoses, sync.no_diagnosis_reason) == ((), "every differing tensor is larger than 8 bytes")


def test_what_one_rank_wrote_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from ckptcheck.live.runtime.worker.ckptcheck_worker import inventory, tensor_files

    held = [("a", "parameter", torch.ones(3), ""), ("b", "parameter", torch.zeros(2, 2), "")]
    path = str(tmp_path / "fetched.safetensors")

    def ask(verb: str, arguments: list[Any]) -> list[dict[str, Any]]:
        return [inventory.fetch_tensors(rank, held, *arguments) for rank in (0, 1)]

    def found() -> list[str]:
        assert [file.name for file in tmp_path.iterdir()] == ["fetched.safetensors"]
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return sorted(header.keys() - {"__metadata__"})

    inventory.fetch_from_ranks(ask, [["a"], ["b"]], path)
    assert found() == ["0/a", "1/b"]
    monkeypatch.setattr(tensor_files, "read_tensors", None)
    inventory.fetch_from_ranks(ask, [[], ["a", "b"]], path)
    assert found() == ["1/a", "1/b"]


def test_what_of_the_export_was_not_compared_is_said(tmp_path: Path) -> None:
    extra = "model.layers.0.self_attn.rotary_emb.inv_freq"
    (section,) = (
        section
        for section in run_trial_case({"trainer": {"extra": extra}}, tmp_path / "extra").sections
        if section.title == "exported, and not compared with SOURCE"
    )
    assert section.lines == (f"1 of 36 tensors: {extra} (the source has no tensor of that name)",)
    assert not [each for each in run_trial_case({}, tmp_path / "whole").sections if each.title == section.title]
