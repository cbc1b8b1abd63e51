"""One rank's part of the matrices of a real model, drawn anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.values.detectors.fresh_shares import find_fresh_shares
from ckptcheck.values.value_pass import ValuePass
from tests.factories.value_cases import copy_with_values, read_raw_values, run_value_rules

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("smollm2")]

CUT_ALONG = {"q_proj": 0, "gate_proj": 0, "up_proj": 0, "o_proj": 1, "down_proj": 1}
"""Matrix → the axis that tensor parallelism cuts."""


def draw_part(smollm2: Path, target: Path, names: list[str], ranks: int, rank: int, how: str) -> Path:
    """Copy the model with one rank's part of some matrices drawn anew."""
    random = np.random.default_rng(ranks)
    ckpt, values = open_checkpoint(str(smollm2)), {}
    for name in names:
        shape = ckpt.tensors[name].shape
        patterns = np.frombuffer(read_raw_values(ckpt, name), "<u2").reshape(shape).copy()
        axis = CUT_ALONG[name.split(".")[-2]]
        part = np.array_split(patterns, ranks, axis)[rank]
        bound = 1 / np.sqrt(shape[1])
        drawn = random.normal(0, 0.02, part.shape) if how == "normal" else random.uniform(-bound, bound, part.shape)
        part[:] = drawn.astype(np.float32).view(np.uint32) >> 16
        values[name] = patterns.tobytes()
    return copy_with_values(smollm2, target, values)


@pytest.mark.parametrize(
    ("ranks", "rank", "how", "least"), [(2, 1, "normal", 7), (4, 2, "uniform", 7), (8, 0, "normal", 3)]
)
def test_the_part_of_a_rank_is_named(
    smollm2: Path, tmp_path: Path, ranks: int, rank: int, how: str, least: int
) -> None:
    """In two layers; a part of an eighth of the queries has a single head, and is no finding."""
    names = [
        f"model.layers.{layer}.{'mlp' if role.split('_')[0] in ('gate', 'up', 'down') else 'self_attn'}.{role}.weight"
        for layer in (9, 20)
        for role in CUT_ALONG
    ]
    folder = draw_part(smollm2, tmp_path / "copy", names, ranks, rank, how)
    shares = find_fresh_shares(open_checkpoint(str(folder), value_reader=ValuePass()))
    assert {share.name for share in shares} <= set(names)
    assert len(shares) >= least
    for share in shares:
        assert (share.begin, share.end) == (rank * share.length // ranks, (rank + 1) * share.length // ranks)
        assert share.axis == CUT_ALONG[share.name.split(".")[-2]]
        assert share.distribution == how
    findings = run_value_rules(folder)
    assert {finding.code for finding in findings} == {"VAL012"}


def test_no_part_of_a_sound_model_looks_drawn(smollm2: Path) -> None:
    assert find_fresh_shares(open_checkpoint(str(smollm2), value_reader=ValuePass())) == []
