"""Key and value heads of a real model, written again and again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from tests.factories.value_cases import copy_with_values, read_raw_values, run_value_rules

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("smollm2")]


@pytest.mark.parametrize(("layers", "reported"), [([12], 1), ([0, 7, 29], 3), (range(30), 0)])
@pytest.mark.parametrize("module", ["k_proj", "v_proj"])
def test_one_head_in_place_of_all(
    smollm2: Path, tmp_path: Path, module: str, layers: Iterable[int], reported: int
) -> None:
    """In every layer they are the heads of a model with a single one, repeated for three ranks."""
    ckpt, values = open_checkpoint(str(smollm2)), {}
    for layer in layers:
        name = f"model.layers.{layer}.self_attn.{module}.weight"
        heads = np.frombuffer(read_raw_values(ckpt, name), "<u2").reshape(3, 64 * 576)
        values[name] = np.repeat(heads[:1], 3, axis=0).tobytes()
    findings = run_value_rules(copy_with_values(smollm2, tmp_path / "copy", values))
    assert {(finding.code, finding.severity, finding.key) for finding in findings} == (
        {("VAL010", "warning", name) for name in values} if reported else set()
    )
    assert len(findings) == reported
