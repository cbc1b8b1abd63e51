"""Columns that a tensor-parallel rank left at zero, in a real model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from tests.factories.value_cases import copy_with_values, read_raw_values, run_value_rules

LAYER = "model.layers.12."


@pytest.mark.slow
def test_half_of_the_columns_lost(smollm2: Path, tmp_path: Path) -> None:
    """Rank 1 of 2 of a row-parallel layer: 576 bytes of zeros in each row, too short for a block."""
    name = LAYER + "self_attn.o_proj.weight"
    value = np.frombuffer(read_raw_values(open_checkpoint(str(smollm2)), name), "<u2").reshape(576, 576).copy()
    value[:, 288:] = 0
    findings = run_value_rules(copy_with_values(smollm2, tmp_path / "lost", {name: value.tobytes()}))
    assert [(finding.code, finding.key) for finding in findings] == [("VAL005", name)]
    assert findings[0].message.startswith("columns 288-575 of 576 are zero in every row")


def test_a_rank_lost_of_every_layer_is_said_once_a_shard(smollm2: Path, tmp_path: Path) -> None:
    ckpt, values = open_checkpoint(str(smollm2)), {}
    for layer in range(30):
        name = LAYER.replace("12", str(layer)) + "self_attn.o_proj.weight"
        value = np.frombuffer(read_raw_values(ckpt, name), "<u2").reshape(576, 576).copy()
        value[:, 288:] = 0
        values[name] = value.tobytes()
    findings = run_value_rules(copy_with_values(smollm2, tmp_path / "lost", values))
    assert [finding.code for finding in findings] == ["VAL005"] * len({ckpt.tensor_to_file[name] for name in values})
    assert findings[0].message.startswith("columns 288-575 of 576 are zero in every row, and so are columns of ")
