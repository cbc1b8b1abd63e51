"""The gap that a job logs is read where it is logged, and judged with the next sync."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import ckptcheck
from ckptcheck.errors import CkptcheckError
from ckptcheck.runs.history.history import open_history
from ckptcheck.watch import SyncWarning, Watch, watch_log
from tests.watch.toy import NAMES, Engine, Trainer

TRL = "sampling/sampling_logp_difference/mean"


def run_syncs(watch: Watch, gaps: Sequence[float | None]) -> None:
    """Sync a toy, and log a gap after each."""
    trainer, engine = Trainer(), watch.engine
    assert isinstance(engine, Engine)
    for step, gap in enumerate(gaps):
        with watch(step=step) as sync:
            engine.update(sync.sent(trainer.export()))
        trainer.step()
        watch.logged({"loss": 0.5} if gap is None else {TRL: gap, "loss": 0.5}, step)


def test_the_next_sync_has_the_gap_and_the_end_judges_the_last_one(tmp_path: Path) -> None:
    found: list[str] = []
    watch = Watch(Engine(), record=tmp_path / "syncs.jsonl", on=lambda finding: found.append(finding.message))
    watch.dtype = "float32"
    run_syncs(watch, [2e-7, 3e-7, None, 2e-7, 0.004])
    gaps = [sync.gap for sync in open_history(tmp_path / "syncs.jsonl").syncs]
    assert [gap and (gap.value, gap.step, gap.dtype) for gap in gaps] == [
        None, (2e-7, 0, "float32"), (3e-7, 1, "float32"), None, (2e-7, 3, "float32"),
    ]  # fmt: skip
    assert found == []
    watch.close()
    (message,) = found
    assert message.startswith(f"step 4: {TRL} is 0.004, 20,000 times what it was; the engine held all that was sent")


def test_a_gap_is_an_info_where_another_rule_names_its_cause_and_an_error_where_none_does(tmp_path: Path) -> None:
    for lost, expected in ((True, [("error", "HIS001"), ("info", "HIS024")]), (False, [("error", "HIS024")])):
        trainer, engine, record = Trainer(), Engine(), tmp_path / f"{lost}.jsonl"
        watch = Watch(engine, record=record, on=lambda finding: None)
        watch.dtype = "float32"
        for step in range(6):
            engine.deaf = (NAMES[0],) if lost and step == 4 else ()
            with watch(step=step) as sync:
                engine.update(sync.sent(trainer.export()))
            trainer.step()
            watch.logged({TRL: 0.004 if step == 4 else 2e-7}, step)
        watch.close()
        findings = ckptcheck.history(record).findings
        assert [(each.severity, each.code) for each in findings] == expected
        assert (findings[-1].hint == "mend what HIS001 names") is lost


def test_a_gap_after_a_sync_that_the_job_left_out_is_an_info(tmp_path: Path) -> None:
    record = tmp_path / "syncs.jsonl"
    watch = Watch(Engine(), record=record, on=lambda finding: None)
    watch.dtype = "float32"
    trainer = Trainer()
    for step in range(8):
        if step != 5:
            with watch(step=step) as sync:
                watch.engine.update(sync.sent(trainer.export()))  # type: ignore[union-attr]
        trainer.step()
        watch.logged({TRL: 0.004 if step == 5 else 2e-7}, step)
    watch.close()
    findings = ckptcheck.history(record).findings
    assert [(each.severity, each.code) for each in findings] == [("warning", "HIS014"), ("info", "HIS024")]
    assert findings[-1].hint == "mend what HIS014 names"


def test_an_engine_that_is_one_sync_late_has_one_finding(tmp_path: Path) -> None:
    trainer, engine, record = Trainer(), Engine(), tmp_path / "syncs.jsonl"
    watch = Watch(engine, record=record, on=lambda finding: None)
    late: Any = ()
    for step in range(6):
        with watch(step=step) as sync:
            weights = list(sync.sent(trainer.export()))
            engine.update(late if step >= 2 else weights)
            late = weights
        trainer.step()
    findings = ckptcheck.history(record).findings
    assert [(each.severity, each.code) for each in findings] == [("error", "HIS008"), ("info", "HIS001")]


def test_a_gap_that_lasts_is_one_finding_and_long_jobs_keep_their_start(tmp_path: Path) -> None:
    """The watch judges the last ten syncs, and all gaps."""
    found: list[str] = []
    watch = Watch(Engine(), on=lambda finding: found.append(f"{finding.code} {finding.message}"))
    watch.dtype = "float32"
    run_syncs(watch, [2e-7] * 60 + [0.002] * 30)
    assert [line[:14] for line in found] == ["HIS024 step 60"]


def test_what_is_no_number_breaks_nothing(tmp_path: Path) -> None:
    watch = Watch(Engine(), record=tmp_path / "syncs.jsonl", on=lambda finding: None)
    run_syncs(watch, [2e-7, float("nan"), float("inf"), 2e-7])
    watch.logged({TRL: "none", 3: 4.0}, 4)
    history = open_history(tmp_path / "syncs.jsonl")
    assert not history.damaged_lines
    assert [sync.gap.value for sync in history.syncs if sync.gap is not None] == [2e-7, None, None]
    codes = [finding.code for finding in ckptcheck.history(tmp_path / "syncs.jsonl").findings]
    assert codes == ["HIS024"]


@pytest.mark.parametrize(
    ("logged", "expected"),
    [
        ([{"grad_norm": 2e9, "loss": 0.1}] * 6, ["step 0: the norm of the gradient is 2e+09; it is above 1,000 at 1 of 1 step"]),
        ([{"grad_norm": 0.0}] * 7, ["the gradient is 0 at each of 5 steps"]),
        # slime logs a step by parts
        ([{"rollout/log_probs": -0.5, "rollout/ref_log_probs": -0.9}, {"train/grad_norm": 0.1, "train/ppo_kl": 0.0, "at": 0}],
         ["step 0: rollout/log_probs - rollout/ref_log_probs is 0.4, where trainer and reference hold the same weights"]),
        ([{"grad_norm": 0.4}, {"grad_norm": float("inf")}, {"grad_norm": 5e3}, {"grad_norm": "none"}], []),
        ([{"actor/grad_norm": 0.0, "actor/pg_loss": 0.0}, *[{"actor/grad_norm": 0.3}] * 5], []),
    ],
)  # fmt: skip
@pytest.mark.parametrize("syncs", [True, False])
def test_what_else_the_job_logs_is_judged_in_the_job_and_kept(
    tmp_path: Path, logged: list[dict[str, Any]], expected: list[str], syncs: bool
) -> None:
    """HIS032, said once: with the next sync, or at once in a driver that syncs nothing."""
    found: list[str] = []
    watch = Watch(
        Engine() if syncs else None, record=tmp_path / "syncs.jsonl", on=lambda finding: found.append(finding.message)
    )
    trainer = Trainer()
    for place, metrics in enumerate(logged):
        step = metrics.get("at", place)
        if syncs and step == place:
            with watch(step=step) as sync:
                watch.engine.update(sync.sent(trainer.export()))  # type: ignore[union-attr]
            trainer.step()
        watch.logged(metrics, step)
    watch.close()
    assert found == expected
    if len(logged) > 2:  # the end of the process records nothing
        said = [each.message for each in ckptcheck.history(tmp_path / "syncs.jsonl").findings if each.code == "HIS032"]
        assert len(said) == len(expected)


class VerlTracking:
    """As verl's."""

    def log(self, data: dict[str, Any], step: int, backend: Any = None) -> str:
        return f"{step}: {len(data)}"


class NemoLogger:
    """As NeMo-RL's."""

    def log_metrics(self, metrics: dict[str, Any], step: int, prefix: str = "") -> None:
        pass


class ArealLogger:
    """As AReaL's."""

    def commit(self, epoch: int, step: int, global_step: int, data: dict[str, Any] | list[dict[str, Any]]) -> None:
        pass


class OpenRLHFLogger:
    """As OpenRLHF's."""

    def log_train(self, global_step: int, logs_dict: dict[str, Any]) -> None:
        pass


def make_module(function: Any) -> ModuleType:
    """Return a module with a function `log`, as slime's and prime-rl's have one."""
    module = ModuleType("logging_utils")
    module.log = function  # type: ignore[attr-defined]
    return module


async def log_later(data: dict[str, Any], step: int, kind: str = "train") -> None:
    """Log as prime-rl does."""


def log_of_slime(args: Any, metrics: dict[str, Any], step_key: str) -> None:
    """Log as slime does."""


@pytest.mark.parametrize(
    ("tracker", "log", "name"),
    [
        (
            VerlTracking(),
            lambda own, value, step: own.log(
                {"rollout_corr/k3_kl": value, "training/rollout_probs_diff_mean": 9.0}, step=step
            ),
            "rollout_corr/k3_kl",
        ),
        (
            NemoLogger(),
            lambda own, value, step: own.log_metrics({"token_mult_prob_error": 1 + value}, step, prefix="train"),
            "token_mult_prob_error",
        ),
        (
            ArealLogger(),
            lambda own, value, step: own.commit(0, 77, step, [{"ppo_actor/update/behave_approx_kl/avg": value}]),
            "ppo_actor/update/behave_approx_kl/avg",
        ),
        (OpenRLHFLogger(), lambda own, value, step: own.log_train(step, {"vllm_kl": value}), "vllm_kl"),
        (
            make_module(log_of_slime),
            lambda own, value, step: own.log(
                SimpleNamespace(),
                {"train/train_rollout_logprob_abs_diff": value, "train/step": step},
                step_key="train/step",
            ),
            "train/train_rollout_logprob_abs_diff",
        ),
        (
            make_module(log_later),
            lambda own, value, step: asyncio.run(own.log({"mismatch_kl/all/mean": value}, step=step)),
            "mismatch_kl/all/mean",
        ),
    ],
    ids=["verl", "nemo-rl", "areal", "openrlhf", "slime", "prime-rl"],
)
def test_a_driver_that_syncs_nothing_records_what_it_logs(tracker: Any, log: Any, name: str, tmp_path: Path) -> None:
    watch = Watch(record=tmp_path / "driver.jsonl", on=lambda finding: pytest.fail(finding.message))
    watch_log(tracker, watch)
    for step in range(12):
        log(tracker, 1e-4, step)
    history = open_history(tmp_path / "driver.jsonl")
    assert [(sync.gap.name, sync.gap.step, sync.step) for sync in history.syncs if sync.gap] == [
        (name, step, step) for step in range(12)
    ]
    assert {sync.gap.value for sync in history.syncs if sync.gap} <= {1e-4, 1 + 1e-4}
    assert ckptcheck.history(tmp_path / "driver.jsonl").findings == ()


def test_a_tracker_returns_what_it_returned_and_other_metrics_are_left_alone() -> None:
    watch = Watch()
    assert watch_log(VerlTracking(), watch).log({"loss": 1.0}, 3) == "3: 1"
    assert (watch.number, watch.gaps) == (0, [])
    with pytest.raises(CkptcheckError, match="list has none of log, log_metrics, log_train, commit"):
        watch_log([], watch)


def test_a_jump_in_the_driver_is_said_at_once() -> None:
    watch = Watch()
    tracker = watch_log(NemoLogger(), watch)
    for step in range(5):
        tracker.log_metrics({"token_mult_prob_error": 1.004}, step)
    with pytest.warns(
        SyncWarning, match=r"HIS024 step 5: token_mult_prob_error is 1\.4 \(0\.4 nats a token\), 100 times what it was"
    ):
        tracker.log_metrics({"token_mult_prob_error": 1.4}, 5)
