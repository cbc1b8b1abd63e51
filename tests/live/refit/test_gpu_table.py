"""The table of ``make gpu`` is made of a refit's report; what is not there is said."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.experiments.probes.registry import select_probes
from tests import gpu
from tests.factories import refit_cases
from tests.guides import check_command

CELL = gpu.Cell("vllm", "ipc", switch="compilation=graphs")


def test_a_row_is_the_last_sync_of_a_report(tmp_path: Path) -> None:
    trace = refit_cases.run_trial_case({}, tmp_path / "trial")
    syncs = tuple(replace(each, nbytes=2_000_000_000, seconds=2.0, check_seconds=0.5) for each in trace.syncs)
    report = run_rules(
        replace(trace, syncs=syncs), [rule for rule in rule_loader.load_rules() if rule.on == "refit"]
    ).to_dict()
    cells = dict(zip(gpu.HEAD, gpu.row(CELL, report), strict=True))
    assert cells["cell"] == "megatron → vllm ipc compilation=graphs"
    assert (cells["sent"], cells["sync s"], cells["check s"], cells["verdict"]) == ("2.00 GB", "2.00", "0.50", "clean")
    assert gpu.row(CELL, report)[3::3] == ("1.0", "4.0")


def test_the_seconds_are_those_of_the_sync_that_ran_as_in_a_job() -> None:
    columns = ["step", "sync s", "update s", "check s"]
    table = {"title": gpu.COSTS, "columns": columns, "rows": [[0, 9, 9, 1], [1, 2, 1, 1], [1, 7, 7, 1]]}
    report = {"verdict": "clean", "findings": [], "sections": [table], "counts": {"bytes": 3e9}}
    assert gpu.row(CELL, report) == (str(CELL), "1.00 GB", "2.00", "0.5", "1.00", "1.00", "1.0", "clean")


def test_a_report_without_a_sync_is_a_row_too() -> None:
    shown = gpu.row(CELL, {"verdict": "incomplete", "findings": [{"code": "REF001"}], "error": "torch sees no GPU"})
    assert len(shown) == len(gpu.HEAD)
    assert shown[-1] == "incomplete: torch sees no GPU (REF001)"


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "gpus", lambda: 1)
    assert gpu.lacking(gpu.Cell("vllm", "nccl", gpus=2)) == "needs 2 GPUs, and 1 is here"
    monkeypatch.delenv("CKPTCHECK_VLLM_PYTHON", raising=False)
    assert gpu.lacking(CELL) == "CKPTCHECK_VLLM_PYTHON names no Python that has vllm for GPUs"
    monkeypatch.setenv("CKPTCHECK_VLLM_PYTHON", "/python")
    monkeypatch.setenv("CKPTCHECK_TRAINER_PYTHON", "/python")
    assert gpu.lacking(CELL) == ""


def test_what_has_to_pass_on_a_gpu() -> None:
    all_but = [{"passed": sorted(gpu.DUE - {code}), "skipped": []} for code in ("REF008", "REF010", "REF012")]
    assert [gpu.overdue(gpu.Cell("vllm", "reload"), report) for report in all_but] == [set(), {"REF010"}, {"REF012"}]
    assert gpu.overdue(gpu.Cell("sglang", "disk"), all_but[0]) == set()
    assert gpu.overdue(gpu.Cell("sglang", "tensor"), all_but[0]) == {"REF008"}
    why = "rounding explains more, and on a GPU another process may choose other kernels"
    assert gpu.overdue(CELL, {**all_but[1], "skipped": [{"code": "REF010", "reason": why}]}) == set()


def test_every_kind_of_refit_has_a_cell() -> None:
    """As the transports of each engine that need GPUs, graphs, speculative decoding and packed weights."""
    for engine in ("vllm", "sglang"):
        own = [cell for cell in gpu.CELLS if cell.engine == engine]
        assert {cell.switch for cell in own} == {"", "compilation=graphs", "speculative=3"}
        assert {cell.quantize for cell in own} == ({"", "fp8"} if engine == "vllm" else {""})
    assert len({str(cell) for cell in gpu.CELLS}) == len(gpu.CELLS)


def test_a_probe_that_could_not_measure_is_said_first() -> None:
    report = {
        "skipped": [{"code": "PRB022", "reason": "vLLM made it inductor by itself"}],
        "findings": [{"code": "PRB010", "severity": "info", "message": "0.02 nats"}],
        "passed": ["PRB011"],
        "sections": [{"title": gpu.NOT_RUN, "lines": ["graphs: made inductor"]}, {"title": "another", "lines": ["x"]}],
    }
    assert list(gpu.probe_lines(report)) == [
        "not measured: graphs: made inductor",
        "not measured: PRB022: vLLM made it inductor by itself",
        "info: PRB010: 0.02 nats",
        "passed: PRB011",
    ]
    select_probes(gpu.PROBES, ())


def test_every_command_is_one_that_the_command_line_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They have run on no GPU yet, so at least their words are checked."""
    ran: list[list[str]] = []
    monkeypatch.setattr("subprocess.run", lambda command, **_: ran.append(command))
    for cell in gpu.CELLS:
        gpu.refit(tmp_path, cell)
        gpu.probe(tmp_path, cell.engine)
        gpu.attach(tmp_path, cell.engine, "http://localhost:1")
    assert len(ran) == 3 * len(gpu.CELLS)
    for command in ran:
        assert check_command(shlex.join(command[3:])) in ("refit", "parity probe", "attach")


def test_where_nothing_can_run_every_line_has_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "gpus", lambda: 0)
    monkeypatch.setattr(gpu, "figures", lambda: None)
    monkeypatch.setattr("sys.argv", ["gpu"])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    lines = capsys.readouterr().out.splitlines()
    assert ended.value.code == 2
    assert len(lines) == len(gpu.CELLS) + 3
    assert all(line.endswith(("and 0 are here", "nothing ran")) for line in lines)
