"""The weights that frameworks' own functions gave a batch (fixtures/framework_weights.py) are the ones that ckptcheck computes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ckptcheck.rollouts import Rollout, Rollouts, build_rollouts
from ckptcheck.rollouts.metrics import compute_metrics
from ckptcheck.rollouts.metrics.framework_metrics import NEMO_RL, TRL, VERL
from ckptcheck.rollouts.metrics.importance_weights import Correction, compute_log_ratios, compute_weights
from tests.paths import DATA

RECORD = json.loads((DATA / "rollouts" / "framework-weights.json").read_text(encoding="utf-8"))
PROMPT = 2


def batch() -> Rollouts:
    rows = zip(RECORD["engine"], RECORD["trainer"], RECORD["mask"], strict=True)
    return build_rollouts(
        [
            Rollout(
                [1] * (PROMPT + len(engine)), PROMPT, engine, trainer, mask=[0] * PROMPT + [int(flag) for flag in mask]
            )
            for engine, trainer, mask in rows
        ],
        double=True,
    )


@pytest.mark.parametrize(
    "case", RECORD["weights"], ids=lambda case: " ".join(map(str, (case["framework"], *case["correction"].values())))
)
def test_their_functions_compute_the_same(case: dict[str, Any]) -> None:
    settings = dict(case["correction"])
    is_mean = settings.pop("mean", False)
    correction, rollouts = Correction(**settings), batch()
    gap = compute_metrics(rollouts)
    assert gap is not None
    logs = compute_log_ratios(gap)
    widest = max(len(row) for row in case["weights"])
    mask = np.array(RECORD["mask"]) != 0
    token = np.where(mask, np.array(RECORD["trainer"]) - np.array(RECORD["engine"]), 0.0)
    every = {"token": token} | {level: np.broadcast_to(ratio[:, None], token.shape) for level, ratio in logs.items()}
    ours = correction.weigh(every)
    if is_mean:
        rows = [[float(row[used].mean())] for row, used in zip(ours, mask, strict=True)]
    elif widest == 1:
        rows = [[float(row[0])] for row in ours]
    else:
        rows = [row[used].tolist() for row, used in zip(ours, mask, strict=True)]
    for mine, theirs in zip(rows, case["weights"], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-6, abs=1e-9)
    # The summary takes one number of a sequence, or those of all tokens.
    found = compute_weights(correction, gap, rollouts)
    values = (
        np.concatenate(rows)
        if "token" in (correction.weight, correction.mask) and not is_mean
        else [row[0] for row in rows]
    )
    if not (is_mean and "token" in (correction.weight, correction.mask)):
        assert (found.number, found.lost) == (len(values), int((np.array(values) == 0).sum()))
        assert (found.least, found.mean, found.greatest) == pytest.approx((min(values), np.mean(values), max(values)))


@pytest.mark.filterwarnings("error")
def test_absurd_logprobs_give_numbers() -> None:
    rollouts = build_rollouts([Rollout([1, 2, 3], 1, [-1e30, -1.0], [-1.0, -1.0])], double=True)
    gap = compute_metrics(rollouts)
    assert gap is not None
    assert np.isfinite(compute_weights(Correction("sequence"), gap, rollouts).mean)
    assert compute_weights(Correction("token", mask="sequence", mask_high=3.0), gap, rollouts).lost == 2


@pytest.mark.parametrize(
    "case", [case for case in RECORD["weights"] if case["framework"] in ("TRL", "NeMo-RL")], ids=str
)
def test_a_framework_logs_its_weights(case: dict[str, Any]) -> None:
    """TRL logs the least, the mean and the largest one, NeMo-RL the mean over sequences or tokens."""
    settings = dict(case["correction"])
    is_mean = settings.pop("mean", False)
    correction, rollouts = Correction(**settings), batch()
    gap = compute_metrics(rollouts)
    assert gap is not None
    ours = {"TRL": TRL, "NeMo-RL": NEMO_RL}[case["framework"]].numbers(
        gap, correction, compute_weights(correction, gap, rollouts)
    )
    by_token = "token" in (correction.weight, correction.mask)
    if is_mean:
        sizes = np.array(RECORD["mask"]).sum(1) if by_token else None
        wanted = np.average([row[0] for row in case["weights"]], weights=sizes)
        assert ours["sampling_importance_ratio"] == pytest.approx(wanted, rel=1e-6)
        return
    values = np.concatenate(case["weights"])
    for name, value in (("min", values.min()), ("mean", values.mean()), ("max", values.max())):
        assert ours[f"sampling/importance_sampling_ratio/{name}"] == pytest.approx(value, rel=1e-6)


def test_what_a_framework_logs_under_another_correction_is_left_out() -> None:
    gap = compute_metrics(batch())
    assert gap is not None
    every = VERL.numbers(gap)
    other = VERL.numbers(gap, Correction("sequence", high=2.0), compute_weights(Correction("sequence"), gap, batch()))
    assert {name for name in every if "rollout_is" in name} == every.keys() - other.keys()
    assert VERL.numbers(gap, Correction("token", high=2.0)) == every
