"""Projections of a real model of which only the signs are left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from tests.factories.value_cases import copy_with_values, find_keys, read_raw_values

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("smollm2")]


@pytest.mark.parametrize(("layers", "reported"), [([12], True), (range(30), False)])
def test_a_matrix_of_signs_among_others_is_named(
    smollm2: Path, tmp_path: Path, layers: list[int], reported: bool
) -> None:
    """A model that is binary in all layers is meant to be."""
    ckpt, values = open_checkpoint(str(smollm2)), {}
    for layer in layers:
        name = f"model.layers.{layer}.mlp.up_proj.weight"
        signs = np.frombuffer(read_raw_values(ckpt, name), "<u2") & 0x8000
        values[name] = (signs | 0x3DCD).astype("<u2").tobytes()
    folder = copy_with_values(smollm2, tmp_path / "copy", values)
    assert find_keys(folder) == ([("VAL007", "model.layers.12.mlp.up_proj.weight")] if reported else [])
