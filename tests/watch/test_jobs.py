"""Real jobs of real frameworks, each with a real vLLM on a CPU: sound syncs are quiet, and every fault is named in the job."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jobs import launch
from jobs.plugin_site import write_plugin_site
from jobs.trials import keep_results

import ckptcheck
from ckptcheck.linter.rule import Finding
from ckptcheck.runs.history.history import open_history
from tests.conftest import needs_engine

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

MISSING = "HIS014 a sync is missing: rollouts began without the weights of this step; they were sampled from those of step {} []"
LINE = re.compile(r"SyncWarning: (HIS\d+) (.*)")


def run(job: str, out: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a job to its end; skip where its framework is not installed. options: of `launch.run`."""
    needs_engine(launch.RECIPES[job])
    done = launch.run(job, str(out), *arguments, **{"capture_output": True, "timeout": 600, **options})
    log = out / "log"
    assert done.returncode == 0, (log.read_text(encoding="utf-8") if log.is_file() else done.stderr)[-5000:]
    return done


def lines_of_the_log(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what the watch wrote into the job's log, each as ``CODE where``."""
    return [f"{match[1]} {match[2].partition(':')[0]}" for match in LINE.finditer(done.stderr)]


def said_of(record: Path) -> dict[str, list[str]]:
    """Return what ``refit history`` says of a job's record: the step that each finding names → code, message and tensor.

    An info is left out: it follows from another finding.
    """
    said: dict[str, list[str]] = {}
    for finding in ckptcheck.history(record).findings:
        if finding.severity == "info":
            continue
        said.setdefault(finding.message.partition(":")[0], []).append(line(finding))
    return said


def line(finding: Finding) -> str:
    return f"{finding.code} {finding.message.partition(': ')[2]} [{finding.key or ''}]"


def test_a_job_of_trl_is_quiet_and_each_fault_in_it_is_named(tmp_path: Path) -> None:
    """Six sound syncs, then one fault after the other with sound syncs in between. Nothing else is said."""
    lost = "model.layers.1.self_attn.k_proj.weight"  # a part of what vLLM fuses
    faults = (f"6=lost:{lost}", "9=skipped", "11=stale", "13=rounded", "15=narrow", "17=unsent:model.layers.0.*")
    done = run("trl_grpo", tmp_path, "--steps", "20", "--fault", *faults)
    expected = {
        6: ["HIS001"],
        9: ["HIS014"],
        11: ["HIS025"],
        13: ["HIS008"],
        15: ["HIS025"],
        17: ["HIS007"],
    }
    said = said_of(tmp_path / "syncs.jsonl")
    codes = {where: sorted(line[:6] for line in lines) for where, lines in said.items()}
    assert codes == {f"step {step}": found for step, found in expected.items()}
    assert sorted(lines_of_the_log(done)) == sorted(
        f"{code} step {step}" for step, found in expected.items() for code in found
    )
    assert (
        f"HIS001 step 6: 1 tensor of the engine did not change although the trainer sent new values: {lost}"
        in done.stderr
    )
    first = {where: lines[0] for where, lines in said.items()}
    assert first["step 9"] == MISSING.format(8)
    assert first["step 11"].startswith(
        "HIS025 21 tensors were sent with other values than the trainer's own parameters have"
    )
    assert "; the export has the values of step 10, from before the step [" in first["step 11"]
    assert first["step 13"].startswith(
        "HIS008 the engine holds other values than the trainer sent in 16 tensors"
    )  # no norms
    assert first["step 15"].startswith("HIS025 ")
    assert ": rounded to bfloat16 [" in first["step 15"]
    assert first["step 17"].startswith("HIS007 the trainer no longer sends 9 of 21 tensors: model.layers.0.")
    probes = [sync.probe for sync in open_history(tmp_path / "syncs.jsonl").syncs]
    assert all(probe is not None for probe in probes)
    sound = [
        probe.mean for place, probe in enumerate(probes) if probe is not None and place in (0, 1, 2, 3, 4, 5, 7, 8)
    ]
    assert max(sound) < 1e-6


@pytest.mark.matrix
def test_a_larger_job_of_trl_that_is_watched_beside_its_steps(tmp_path: Path) -> None:
    """The default share: a group of tensors at a sync. What is lost from a step on is named within ten syncs."""
    lost, first = "model.layers.3.self_attn.k_proj.weight", 6
    faults = [f"{step}=lost:{lost}" for step in range(first, first + 10)]
    sizes = ("--hidden", "768", "--layers", "6", "--share", "0.02", "--steps", str(first + 10))
    run("trl_grpo", tmp_path, *sizes, "--fault", *faults)
    history = open_history(tmp_path / "syncs.jsonl")
    assert all(len(sync.sent) < 20 for sync in history.syncs[4:])
    findings = [finding for finding in ckptcheck.history(tmp_path / "syncs.jsonl").findings if finding.code != "HIS016"]
    assert {finding.code for finding in findings} <= {"HIS001", "HIS008"}
    assert {finding.key for finding in findings if finding.code == "HIS001"} == {lost}
    assert all(int(finding.message.split()[1].rstrip(":")) >= first for finding in findings)


def test_a_job_of_trl_with_the_callback_alone(tmp_path: Path) -> None:
    """`WatchCallback` finds the engine in the trainer's process, and sees both ends."""
    lost = "model.layers.1.self_attn.v_proj.weight"
    done = run("trl_grpo", tmp_path, "--watch", "callback", "--steps", "10", "--fault", f"4=lost:{lost}", "7=skipped")
    assert said_of(tmp_path / "syncs.jsonl") == {
        "step 4": [
            f"HIS001 1 tensor of the engine did not change although the trainer sent new values: {lost} [{lost}]"
        ],
        "step 7": [MISSING.format(6)],
    }
    assert lines_of_the_log(done) == ["HIS001 step 4", "HIS014 step 7"]
    syncs = open_history(tmp_path / "syncs.jsonl").syncs
    assert [sync.step for sync in syncs] == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert {(len(sync.sent), len(sync.held), sync.trainer, sync.engine) for sync in syncs} == {(21, 21, "trl", "vllm")}


SAMPLE = ("a NaN is sent", "gate and up", "the head is never", "rollouts come before", "another job writes", "as it is")


def test_faults_planted_from_outside_are_named(tmp_path: Path) -> None:
    """A sample of the table that `make matrix` writes, one of each class, and a sound job."""
    run("trl_faults", tmp_path, "--only", *SAMPLE)
    rows = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))
    assert {row["name"]: row["good"] for row in rows} == {row["name"]: True for row in rows}
    assert len(rows) == len(SAMPLE)


@pytest.mark.matrix
def test_all_faults_planted_from_outside_and_all_sound_settings(tmp_path: Path) -> None:
    """All but two faults have their cause named within three syncs, and no sound setting is alarmed. The table is kept."""
    run("trl_faults", tmp_path, timeout=3600)
    keep_results("TRL 1.16.0", tmp_path / "table.json")


@pytest.mark.matrix
def test_all_faults_in_jobs_of_verl_and_all_sound_settings(tmp_path: Path) -> None:
    """Each in a job of its own, with what watches as it is left on: at the rollout, in vLLM, and in the driver."""
    run("verl_grpo", tmp_path, "--table", timeout=3600)
    keep_results("verl 0.9.1", tmp_path / "table.json")


def test_a_job_of_trl_with_a_server(tmp_path: Path) -> None:
    """vLLM's own HTTP server, asked by the callback for its checksums, and watching itself at the same time."""
    lost, engine = "model.layers.1.mlp.down_proj.weight", tmp_path / "engine.jsonl"
    done = run(
        "trl_server",
        tmp_path,
        *("--steps", "8", "--lost", f"4={lost}", "--probe", "3"),
        sites=[write_plugin_site(tmp_path / "plugin")],
        variables={"CKPTCHECK_WATCH": f"record={engine},share=1000,budget=60"},
    )
    codes = {where: [line[:6] for line in lines] for where, lines in said_of(tmp_path / "syncs.jsonl").items()}
    assert codes == {"step 4": ["HIS001"]}
    assert (
        f"HIS001 step 4: 1 tensor of the engine did not change although the trainer sent new values: {lost}"
        in done.stderr
    )
    syncs = open_history(tmp_path / "syncs.jsonl").syncs
    assert {(len(sync.sent), len(sync.held), sync.coverage, sync.version) for sync in syncs} == {(21, 15, 1.0, None)}
    assert [sync.gap.dtype for sync in syncs if sync.gap] == ["float32"] * 7
    assert max(sync.probe.drawn or 0 for sync in syncs[:4] if sync.probe) < 1e-6
    # the engine counts the first two syncs as step 0
    assert {where: [line[:6] for line in lines] for where, lines in said_of(engine).items()} == {"step 3": ["HIS007"]}


def test_vllm_watches_itself_in_a_job_of_trl(tmp_path: Path) -> None:
    """The engine sees what reaches it: a tensor lost on the way is one that is not sent. Both records tell more."""
    record, lost = tmp_path / "engine.jsonl", "model.layers.0.mlp.up_proj.weight"
    arguments = ("--watch", "callback", "--steps", "8", "--fault", f"3=lost:{lost}", "6=stale")
    variables = {"CKPTCHECK_WATCH": f"record={record},share=1000,budget=60"}
    done = run("trl_grpo", tmp_path, *arguments, sites=[write_plugin_site(tmp_path / "site")], variables=variables)
    syncs = open_history(record).syncs
    assert [(sync.trainer, sync.engine) for sync in syncs] == [("", "vllm")] * 8
    assert [(len(sync.sent), len(sync.held)) for sync in syncs] == [(21, 21)] * 3 + [(20, 21)] + [(21, 21)] * 4
    # the engine knows no steps: the first two syncs count as step 0
    assert said_of(record) == {
        "step 2": [f"HIS007 the trainer no longer sends 1 of 21 tensors: {lost} [{lost}]"],
        "step 5": ["HIS002 the trainer sent all 21 tensors as at step 4 []"],
    }
    assert {"HIS007 step 2", "HIS002 step 5"} < {*lines_of_the_log(done)}
    joined = ckptcheck.history(tmp_path / "syncs.jsonl", record).findings
    assert [line(each) for each in joined if each.code != "HIS025" and each.severity != "info"] == [
        f"HIS007 1 of 21 tensors that were sent did not arrive at an engine: {lost} [{lost}]"
    ]
    assert [each.message[:7] for each in joined if each.code == "HIS025"] == ["step 6:"]


def test_updates_by_checkpoint_engine_are_quiet_and_each_fault_is_named(tmp_path: Path) -> None:
    """A mixture of experts: what is lost is one expert of eight, inside a tensor that vLLM holds all experts in."""
    lost = "model.layers.1.mlp.experts.5.down_proj.weight"
    faults = (f"4=lost:{lost}", "7=misversioned", "9=rounded", "11=unsent:model.layers.0.*", "13=stale", "15=skipped")
    done = run("checkpoint_engine_updates", tmp_path, "--steps", "18", "--fault", *faults)
    said = said_of(tmp_path / "syncs.jsonl")
    begins = {
        "step 4": f"HIS001 1 tensor of the engine did not change although the trainer sent new values: {lost} [{lost}]",
        "step 7": "HIS005 the engine's weight version fell from 6 to 5 []",
        "step 9": "HIS008 the engine holds other values than the trainer sent in 60 tensors: ",
        "step 11": "HIS007 the trainer no longer sends 33 of 69 tensors: model.layers.0.",
        "step 13": "HIS002 the trainer sent all 69 tensors as at step 12 []",
        "step 16": "HIS014 1 sync missing since step 14, in a job that syncs after every step []",
    }
    assert {where: [line[: len(begins[where])] for line in lines] for where, lines in said.items()} == {
        where: [begin] for where, begin in begins.items()
    }
    assert lines_of_the_log(done) == [f"{begin[:6]} {where}" for where, begin in begins.items()]


def test_a_job_of_verl_is_quiet_and_each_fault_in_it_is_named(tmp_path: Path) -> None:
    """Ray, FSDP2, and vLLM in a process of its own, which watches itself: the one record has what the other cannot see."""
    lost, engine = "model.layers.1.self_attn.k_proj.weight", tmp_path / "engine.jsonl"
    faults = (f"3=lost:{lost}", "5=stale", "7=skipped", "9=misversioned")
    run("verl_grpo", tmp_path, *("--steps", "10", "--fault", *faults), timeout=1800)
    assert said_of(tmp_path / "syncs.jsonl") == {
        "step 5": ["HIS002 the trainer sent all 21 tensors as at step 4 []"],
        "step 8": ["HIS014 1 sync missing since step 6, in a job that syncs after every step []"],
        # verl was given 7 at its step 9
        "step 7": ["HIS005 the engine's weight version fell from 8 to 7 []"],
    }
    # the engine knows no steps: it counts the first two syncs as step 0
    assert said_of(engine) == {
        "step 2": [
            f"HIS001 1 tensor of the engine did not change although the trainer sent new values: {lost} [{lost}]"
        ],
        "step 4": ["HIS002 the trainer sent all 21 tensors as at step 3 []"],
    }
    assert {(len(sync.sent), len(sync.held)) for sync in open_history(engine).syncs} == {(21, 21)}
    said = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {(each["side"], each["code"]) for each in said if each["side"] != "driver"} == {
        ("trainer", "HIS002"), ("trainer", "HIS014"), ("trainer", "HIS005"), ("engine", "HIS001"), ("engine", "HIS002"),
    }  # fmt: skip
    driver = open_history(tmp_path / "driver.jsonl")
    assert [(sync.gap is not None, sync.logged is not None) for sync in driver.syncs] == [(True, True)] * 10
    joined = ckptcheck.history(tmp_path / "syncs.jsonl", [engine, tmp_path / "driver.jsonl"]).findings
    assert {each.code for each in joined if each.severity != "info"} == {"HIS001", "HIS002", "HIS005", "HIS014"}
