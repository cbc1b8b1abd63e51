"""Numbers that frameworks' own functions computed (fixtures/framework_metrics.py) are the ones that ckptcheck names after them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ckptcheck.rollouts import Rollout, Rollouts, build_rollouts
from ckptcheck.rollouts.metrics import compute_metrics
from ckptcheck.rollouts.metrics.framework_metrics import BY_SOURCE, VERL, FrameworkMetrics
from tests.paths import DATA

RECORD = json.loads((DATA / "rollouts" / "framework-metrics.json").read_text(encoding="utf-8"))
TABLES = {each.framework: each for each in BY_SOURCE.values()}


def batch() -> Rollouts:
    return build_rollouts(
        [
            Rollout(each["tokens"], each["prompt"], each["engine"], each["trainer"], mask=each["mask"])
            for each in RECORD["sequences"]
        ],
        double=True,
    )


@pytest.mark.parametrize("framework", list(RECORD["metrics"]))
def test_their_functions_compute_the_same(framework: str) -> None:
    theirs = RECORD["metrics"][framework]
    found = compute_metrics(batch())
    assert found is not None
    assert (found.tokens, found.sequences) == (31, 3)
    ours = TABLES[framework].numbers(found)
    assert ours.keys() == theirs.keys()
    assert ours == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize("table", [*TABLES.values()], ids=lambda table: table.framework)
def test_what_is_equal_has_no_gap(table: FrameworkMetrics) -> None:
    equal = build_rollouts([Rollout([1, 2, 3], 1, [-1.0, -2.0], [-1.0, -2.0])])
    found = compute_metrics(equal)
    assert found is not None
    for name, value in table.numbers(found).items():
        if "diff" in name or "kl" in name or "divergence" in name or "chi2" in name:
            assert value == pytest.approx(0, abs=1e-12), name


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("far", [50.0, 800.0, 1e30])
def test_absurd_logprobs_are_numbers_all_the_same(far: float) -> None:
    for engine, trainer in (([-far, -1.0], [-1.0, -1.0]), ([-1.0, -1.0], [-far, -1.0]), ([far, -1.0], [-1.0, -far])):
        found = compute_metrics(build_rollouts([Rollout([1, 2, 3], 1, engine, trainer)], double=True))
        assert found is not None
        assert np.isfinite(found.chi2)
        assert np.isfinite(found.moments.divergence)
        for table in TABLES.values():
            for name, value in table.numbers(found).items():
                assert value is None or not np.isnan(value), (table.framework, name)


def test_a_sequence_without_trained_tokens_counts_where_the_framework_counts_it() -> None:
    one = Rollout([1, 2, 3], 1, [-1.0, -2.0], [-1.5, -2.5])
    none = Rollout([1, 2, 3], 1, [-1.0, -2.0], [-1.5, -2.5], mask=[0, 0])
    found = compute_metrics(build_rollouts([one, none]))
    assert found is not None
    assert found.abs_sequence_mean == pytest.approx(0.5)
    slime = TABLES["slime"].numbers(found)
    assert slime["train/train_rollout_logprob_abs_diff"] == pytest.approx(0.25)
    assert VERL.numbers(found)["rollout_corr/log_ppl_diff"] == pytest.approx(0.25)
