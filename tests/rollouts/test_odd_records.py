"""Columns in any shape and with any values: rules find faults in them, and never crash."""

from __future__ import annotations

import numpy as np
import pytest

from ckptcheck.jobs.job import Job, Setting
from ckptcheck.linter.rule_loader import load_rules
from ckptcheck.linter.runner import run_rules
from ckptcheck.rollouts.job_settings import complete_from_job
from ckptcheck.rollouts.metadata import Metadata
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollouts import Rollouts
from ckptcheck.rollouts.sampling_checkpoint import ExpertLayout
from ckptcheck.rollouts.series import RolloutSeries
from ckptcheck.rollouts.series_member import SeriesMember
from ckptcheck.rollouts.thresholds import Thresholds
from ckptcheck.rollouts.validation import find_defects
from tests.factories.rollout_cases import FakeCheckpoint


def draw_columns(draw: np.random.Generator) -> dict[str, np.ndarray]:
    """Return columns of a few short sequences, some of them empty, with layers and choices from 0 on."""
    lengths = draw.integers(0, 6, draw.integers(0, 4))
    tokens, (layers, choices, positions) = int(lengths.sum()), draw.integers(0, 4, 3).tolist()
    columns: dict[str, np.ndarray] = {
        "tokens": draw.integers(-3, 600, tokens).astype("<i4"),
        "starts": np.concatenate([[0], np.cumsum(lengths)]).astype("<i8"),
        "prompt_lengths": np.array([draw.integers(0, length + 1) for length in lengths], "<i4").reshape(-1),
    }
    for side in ("engine", "trainer"):
        if draw.random() < 0.8:
            values = draw.choice([0, -1, np.nan, -np.inf, np.inf, -0.5], tokens)
            columns[f"{side}_logprobs"] = values.astype(draw.choice(["<f4", "<f8"]))
        if draw.random() < 0.8:
            shape = tokens, layers + int(draw.random() < 0.2), choices + int(draw.random() < 0.2)
            columns[f"{side}_routing"] = draw.integers(-2, 6, shape).astype(draw.choice(["<i2", "<i4"]))
        if draw.random() < 0.5:
            columns[f"{side}_top_ids"] = draw.integers(-2, 600, (tokens, positions)).astype("<i4")
            columns[f"{side}_top_logprobs"] = draw.choice([0, 2, np.nan, -np.inf, -0.5], (tokens, positions)).astype(
                "<f4"
            )
    for name, number in (("rewards", len(lengths)), ("advantages", tokens), ("reference_logprobs", tokens)):
        if draw.random() < 0.8:
            columns[name] = draw.choice(
                [0, 1, -0.5, *([np.nan, np.inf] if draw.random() < 0.5 else [])], number
            ).astype("<f4")
    if draw.random() < 0.5:
        columns["finish"] = draw.integers(-1, 2, len(lengths)).astype("<i2")
    if tokens and draw.random() < 0.5:
        end = int(draw.integers(1, tokens + 1))
        columns["version_spans"] = np.array([[0, end, 0], *([[end, tokens, 1]] if end < tokens else [])], "<i8")
    return columns


@pytest.mark.parametrize("seed", range(100))
def test_rules_do_not_crash(seed: int) -> None:
    draw = np.random.default_rng(seed)
    columns = draw_columns(draw)
    metadata = Metadata(
        step=seed % 4,
        finish_reasons=["length", "stop"],
        versions=["1", "2"],
        stop_tokens=[5, 7] if seed % 2 else [],
        experts=4 if seed % 3 else None,
    )
    rollouts = Rollouts(metadata, columns, tuple(find_defects(columns, metadata)))
    layout = ExpertLayout(4, 2, 3, (1, 2), 1) if seed % 5 else None
    levels = ("token", "sequence", "geometric", "none")
    said = {"algorithm.weight": levels[seed % 4], "algorithm.mask": levels[seed // 4 % 4], "algorithm.mask_high": 1.5}
    job = Job("job.yaml", "TRL", settings={name: Setting(value, "default") for name, value in said.items()})
    evidence = RolloutEvidence(
        "step0.safetensors",
        complete_from_job(rollouts, job),
        Thresholds(exact=True),
        drawn_by=FakeCheckpoint(layout),
        job=job if seed % 2 else None,
        is_replay=seed % 3 > 0,
    )
    assert evidence.sections is not None
    assert not run_rules(evidence, [rule for rule in load_rules() if rule.on in ("columns", "rollouts")]).crashed
    series = RolloutSeries.of([SeriesMember.of(evidence)] * 3, evidence.thresholds)
    assert not run_rules(series, [rule for rule in load_rules() if rule.on == "rollout-series"]).crashed
