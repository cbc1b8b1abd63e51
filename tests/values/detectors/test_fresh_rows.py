"""Rows of a real embedding that were drawn anew: in a range, at random, and as small or as large as the trained ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter.runner import run_rules
from ckptcheck.values.detectors.fresh_rows import find_fresh_rows
from ckptcheck.values.value_pass import ValuePass
from tests.factories.value_cases import EMBEDDING_RULES, copy_with_values, read_raw_values

pytestmark = pytest.mark.slow
NAME = "model.embed_tokens.weight"
ROWS, COLUMNS = 49_152, 576


@pytest.mark.parametrize("size", [0.02, 0.1356])
@pytest.mark.parametrize(
    ("part", "where"),
    [
        ("second half", "about rows 24,"),
        ("second quarter", "about rows 12,"),
        ("random half", "spread over the matrix"),
    ],
)
def test_rows_that_were_drawn_anew_are_named(smollm2: Path, tmp_path: Path, size: float, part: str, where: str) -> None:
    random = np.random.default_rng(0)
    rows = np.frombuffer(read_raw_values(open_checkpoint(str(smollm2)), NAME), np.uint16).reshape(ROWS, COLUMNS).copy()
    chosen = {
        "second half": np.arange(ROWS // 2, ROWS),
        "second quarter": np.arange(ROWS // 4, ROWS // 2),
        "random half": random.permutation(ROWS)[: ROWS // 2],
    }[part]
    drawn = random.normal(0, size, (len(chosen), COLUMNS)).astype(np.float32)
    rows[chosen] = drawn.view(np.uint32) >> 16
    ckpt = open_checkpoint(
        str(copy_with_values(smollm2, tmp_path / "copy", {NAME: rows.tobytes()})), value_reader=ValuePass()
    )
    findings = [finding for finding in run_rules(ckpt, EMBEDDING_RULES).findings if finding.code != "EMB005"]
    assert [finding.code for finding in findings] == ["EMB009"]
    assert f"({where}" in findings[0].message
    fresh = find_fresh_rows(ckpt, NAME)
    assert fresh is not None
    assert abs(fresh.share - len(chosen) / ROWS) < 0.06
    assert abs(fresh.size / size - 1) < 0.03


def test_a_sound_embedding_has_none(smollm2: Path) -> None:
    assert find_fresh_rows(open_checkpoint(str(smollm2), value_reader=ValuePass()), NAME) is None
