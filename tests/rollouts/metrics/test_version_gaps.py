"""The gap by weight version is that of the tokens with the version, whatever the spans look like."""

from __future__ import annotations

import numpy as np
import pytest

from ckptcheck.rollouts import Metadata, Rollout, Rollouts, build_rollouts
from ckptcheck.rollouts.metrics.version_gaps import EDGE, VersionGaps
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence


def measure(rollouts: Rollouts) -> VersionGaps | None:
    return RolloutEvidence("r", rollouts).version_gaps


def draw(lengths: list[int]) -> Rollouts:
    random = np.random.default_rng(0)
    made = []
    for length in lengths:
        engine = -random.exponential(0.3, length)
        made.append(Rollout([1] * (length + 2), 2, engine, engine - random.random(length)))  # type: ignore[arg-type]
    return build_rollouts(made, Metadata(versions=["10", "9"]), double=True)


@pytest.mark.parametrize("cut", [1, 40, 77, 100])
def test_a_span_may_reach_over_sequences(cut: int) -> None:
    rollouts = draw([30, 1, 50, 20])
    total = int(rollouts.starts[-1])
    rollouts = rollouts.with_columns(version_spans=np.array([[0, cut, 0], [cut, total, 1]], np.int64))
    found = measure(rollouts)
    (block,) = rollouts.blocks()
    gap = np.abs(rollouts.columns["trainer_logprobs"] - rollouts.columns["engine_logprobs"])
    parts = {"10": np.arange(total) < cut, "9": np.arange(total) >= cut}
    wanted = {name: gap[part & block.mask] for name, part in parts.items() if (part & block.mask).any()}
    if len(wanted) < 2:
        assert found is None
        return
    assert found is not None
    # 9 comes before 10
    assert list(found.by_version) == ["9", "10"]
    for name, values in wanted.items():
        assert found.by_version[name].tokens == len(values)
        assert found.by_version[name].abs_mean == pytest.approx(values.mean())
        assert found.by_version[name].signed_mean == pytest.approx(-values.mean())
    owner = int(np.searchsorted(rollouts.starts, cut, "right")) - 1
    inside = rollouts.starts[owner] + 2 < cut
    assert list(found.before) == ([("10", "9")] if inside else [])
    if inside:
        segment = np.arange(max(cut - EDGE, rollouts.starts[owner]), cut)
        assert found.before["10", "9"].last.tolist() == pytest.approx([gap[segment[block.mask[segment]]].mean()])


def test_one_version_has_no_table() -> None:
    rollouts = draw([30])
    assert measure(rollouts) is None
    assert measure(rollouts.with_columns(version_spans=np.array([[0, 32, 0]], np.int64))) is None
    assert measure(rollouts.with_columns(version_spans=np.zeros((0, 3), np.int64))) is None


def test_a_version_that_is_listed_twice_is_one() -> None:
    rollouts = draw([30, 30])
    spans = np.array([[0, 10, 0], [10, 32, 1], [32, 64, 2]], np.int64)
    found = measure(rollouts.with_columns(Metadata(versions=["3", "4", "3"]), version_spans=spans))
    assert found is not None
    assert [(name, each.number, each.tokens) for name, each in found.by_version.items()] == [("3", 2, 38), ("4", 1, 22)]


def test_versions_that_no_response_changes() -> None:
    found = measure(draw([30, 30]).with_columns(version_spans=np.array([[0, 32, 0], [32, 64, 1]], np.int64)))
    assert found is not None
    assert found.before == {}
