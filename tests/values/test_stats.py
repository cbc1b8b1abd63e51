"""The statistics of pieces join to those of a tensor."""

from __future__ import annotations

from ckptcheck.values.stats import merge_runs


def test_zero_runs_merge_across_pieces() -> None:
    assert merge_runs([(0, 600), (600, 1200), (2000, 2500), (5000, 6100)]) == [(0, 1200), (5000, 6100)]
