"""``refit history`` reads what a job printed: its loss, its gradient, its KL, and how far engine and trainer are apart."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

import ckptcheck
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Report
from tests.doubles.one_step_job import FORMS

WORKER = "\x1b[36m(MegatronTrainRayActor pid=7, ip=10.0.0.1)\x1b[0m [2026-08-01 10:00:00] "
SLIME = (
    WORKER + "data.py:313 - rollout {step}: {{'rollout/log_probs': {logprob}, 'rollout/ref_log_probs': {reference}}}\n"
    "Train: 100%|##########| 4/4 [00:09<00:00]\n"
    "critic-step {step}: {{'train/critic-value_loss': 3e9, 'train/critic-grad_norm': 3e9, 'train/step': {step}}}\n"
    + WORKER
    + "model.py:700 - step {step}: {{'train/loss': {loss}, 'train/ppo_kl': {own}, 'train/kl_loss': {kl},"
    " 'train/train_rollout_logprob_abs_diff': {mean}, 'train/grad_norm': tensor({norm}, device='cuda:0'), 'train/lr-pg_0': 1e-06,"
    " 'train/step': {step}}}"
)
PIPELINERL = (
    "[finetune]: 2026-08-01 10:00:00,000 - x - Completed steps {step}: {{'stats/lag': '2.000', 'stats/grad_norm': '{norm}',"
    " 'rl/loss': '{loss}', 'rl/mean_abs_log_ratio_new_old': '{mean}', 'rl/kl_new_old': '{k3}', 'rl/ess': '0.998'}}"
)
SOUND = {
    "loss": 0.1,
    "norm": 0.7,
    "k3": 5e-7,
    "mean": 1e-3,
    "logprob": -0.41,
    "reference": -0.41,
    "kl": -7.4e-12,
    "own": 0.0,
}
FAULTS: dict[str, tuple[dict[str, float], str, str]] = {
    "nan": ({"loss": math.nan}, "HIS022", "step 0: the trainer's loss or gradient is no finite number"),
    "gap": ({"mean": 0.3, "k3": 0.045}, "HIS024", "step 0: "),
    "gradient": (
        {"norm": 3e9},
        "HIS032",
        "step 0: the norm of the gradient is 3e+09; it is above 1,000 at 3 of 3 steps",
    ),
    "untrained": ({"norm": 0.0}, "HIS032", "the gradient is 0 at each of 6 steps"),
    "reference": ({"reference": -0.61}, "HIS032", "step 0: rollout/log_probs - rollout/ref_log_probs is 0.2"),
    "kernels": ({"kl": 2e-5}, "HIS032", "step 0: train/kl_loss is 2e-05"),
    "the engine's": ({"own": 0.02}, "HIS032", "step 0: train/ppo_kl is 0.02"),
    "checkpoint": ({"logprob": -9.5, "reference": -9.5}, "HIS032", "step 0: the trainer's mean logprob is -9.5"),
}
"""What is wrong → the numbers with it, the rule that says so, and how its message begins."""
WARNINGS = ("gradient", "untrained", "kernels", "the engine's")
"""The others are errors."""
PRINTED = {**FORMS, "slime": SLIME, "pipelinerl": PIPELINERL}
CASES = [
    (framework, fault)
    for framework, form in PRINTED.items()
    for fault, (numbers, _, _) in FAULTS.items()
    if any(f"{{{name}}}" in form for name in numbers)
]


def read_log(folder: Path, framework: str, steps: int = 3, **numbers: float) -> Report:
    lines = [PRINTED[framework].format(step=step, **{**SOUND, **numbers}) for step in range(steps)]
    (folder / "train.log").write_text(
        "Traceback of nothing: {}\n" + "\n".join(lines) + "\nfinished\n", encoding="utf-8"
    )
    return ckptcheck.history(folder / "train.log")


@pytest.mark.parametrize("framework", PRINTED)
def test_a_sound_log_is_clean_and_passes_only_what_it_shows(tmp_path: Path, framework: str) -> None:
    report = read_log(tmp_path, framework)
    assert report.findings == ()
    assert {*report.passed} <= {"HIS022", "HIS024", "HIS032"}
    assert report.subject == f"log of {framework} · steps 0–2"
    (table,) = report.sections
    loss = next(row for row in table.rows if str(row[0]).endswith("loss") or row[0] == "Loss")
    assert loss[1:] == (0.1, 0.1, 0.1, 0.1)


@pytest.mark.parametrize(("framework", "fault"), CASES)
def test_what_a_job_printed_is_judged(tmp_path: Path, framework: str, fault: str) -> None:
    numbers, code, message = FAULTS[fault]
    (finding,) = read_log(tmp_path, framework, 6 if fault == "untrained" else 3, **numbers).findings
    assert (finding.code, finding.severity) == (code, "warning" if fault in WARNINGS else "error")
    assert finding.message.startswith(message)


def test_the_lines_of_ms_swift_are_those_of_trl(tmp_path: Path) -> None:
    """As in modelscope/ms-swift#5890: rewards differ within groups, and nothing is trained."""
    line = '{"loss": -0.0, "grad_norm": 0.0, "reward_std": 0.13, "kl": 0.0, "global_step/max_steps": "1/547"}\n'
    (tmp_path / "logging.jsonl").write_text(5 * line, encoding="utf-8")
    (finding,) = ckptcheck.history(tmp_path / "logging.jsonl").findings
    assert finding.message == "the gradient is 0 at each of 5 steps"


def write_curves(path: Path, seed: int, **later: float) -> Path:
    """Write the log of a run of 40 steps. later: what is added to a number from step 15 on."""
    dice = random.Random(seed)
    lines = []
    for step in range(40):
        numbers = {
            "reward": 0.5 + dice.gauss(0, 0.03),
            "clipped": abs(dice.gauss(1e-3, 2e-4)),
            "gap": dice.gauss(0.01, 5e-4),
        }
        numbers = {name: value + (later.get(name, 0.0) if step >= 15 else 0.0) for name, value in numbers.items()}
        lines.append(
            "rollout {step}: {{'rollout/raw_reward': {reward}}}\nstep {step}: {{'train/loss': 0.1, 'train/pg_clipfrac': {clipped},"
            " 'train/train_rollout_logprob_abs_diff': {gap}}}".format(step=step, **numbers)
        )
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("later", "severity", "message"),
    [
        ({}, None, ""),
        ({"reward": -0.1}, "warning", "reward diverges at step 15: "),
        ({"gap": 0.02, "clipped": 0.01}, "error", "logged gap is the first curve of the gap to diverge, at step 15: "),
    ],
    ids=["the same", "reward", "gap"],
)
def test_a_log_is_compared_with_that_of_a_reference(
    tmp_path: Path, later: dict[str, float], severity: str | None, message: str
) -> None:
    log, reference = write_curves(tmp_path / "run.log", 1, **later), write_curves(tmp_path / "reference.log", 2)
    (report,) = ckptcheck.judge(log, against=reference)
    assert [finding.severity for finding in report.findings] == ([severity] if severity else [])
    assert all(finding.message.startswith(message) for finding in report.findings)
    assert [row[0] for row in report.sections[0].rows] == ["logged gap", "clip rate", "reward"]
    drawn = ckptcheck.history(log, pictures=True).pictures
    assert [picture.title.partition(" over")[0] for picture in drawn] == ["logged gap", "clip rate", "reward"]
    with pytest.raises(CkptcheckError, match="is what a job printed, and holds no rollouts"):
        ckptcheck.judge(log)


def test_a_curve_of_rounded_numbers_has_no_noise(tmp_path: Path) -> None:
    for name, later in (("reference.log", 0.998), ("run.log", 0.99)):
        lines = [
            f"Completed steps {step}: {{'stats/lag': '2.000', 'rl/ess': '{later if step > 14 else 0.998:.3f}'}}"
            for step in range(1, 41)
        ]
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    (report,) = ckptcheck.judge(tmp_path / "run.log", against=tmp_path / "reference.log")
    (finding,) = report.findings
    assert finding.message.endswith(
        "at step 15: 0.99 from there on, and 0.998 in the reference (whose curve does not vary)"
    )


@pytest.mark.parametrize(
    "text", ["no step\n", "", "step 0: {'train/loss': 1.2.3}\n", f"step {'9' * 400}: {{'train/loss': 1}}"]
)
def test_what_has_no_step_is_no_log(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.log").write_text(text, encoding="utf-8")
    with pytest.raises(CkptcheckError, match=r"train\.log (is not a record of syncs|holds no sync)"):
        ckptcheck.history(tmp_path / "train.log")
