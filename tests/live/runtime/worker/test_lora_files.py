"""Adapters are merged as PEFT merges them, and others of their shape are written."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit.lora.trial import AdapterShape, read_adapter_shape

pytest.importorskip("torch")
from ckptcheck.live.runtime.worker.ckptcheck_worker import lora_files

A, B = "base_model.model.layers.0.q_proj.lora_A.weight", "base_model.model.layers.0.q_proj.lora_B.weight"
WEIGHT = "layers.0.q_proj.weight"


def write(folder: Path, tensors: dict[str, np.ndarray] | None = None, **config: Any) -> tuple[Path, Path]:
    """Write a base model of one matrix and an adapter for it."""
    base, adapter = folder / "base", folder / "adapter"
    base.mkdir()
    adapter.mkdir()
    draw = np.random.default_rng(0)
    save_file(
        {WEIGHT: draw.standard_normal((6, 8)).astype(np.float32), "norm": np.ones(8, np.float32)},
        base / "m.safetensors",
    )
    (base / "config.json").write_text("{}")
    pair = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in ((A, (2, 8)), (B, (6, 2)))}
    save_file(pair if tensors is None else tensors, adapter / lora_files.WEIGHTS)
    (adapter / lora_files.CONFIG).write_text(json.dumps({"r": 2, "lora_alpha": 8, **config}))
    return base, adapter


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, 4.0),
        ({"use_rslora": True}, 8 / math.sqrt(2)),
        ({"alpha_pattern": {"q_proj": 3}}, 1.5),
        ({"alpha_pattern": {"proj": 3, "k_proj": 5}}, 4.0),
        ({"r": 16, "rank_pattern": {"layers.0.q_proj": 2}}, 4.0),
    ],
)
def test_an_adapter_is_merged_with_its_scale(tmp_path: Path, config: dict[str, Any], scale: float) -> None:
    base, adapter = write(tmp_path, **config)
    lora_files.write_merged(str(base), str(adapter), str(tmp_path / "merged"), nudge=False)
    before, pair = load_file(base / "m.safetensors"), load_file(adapter / lora_files.WEIGHTS)
    after = load_file(tmp_path / "merged" / "m.safetensors")
    expected = before[WEIGHT].astype(np.float64) + scale * (pair[B].astype(np.float64) @ pair[A])
    np.testing.assert_array_equal(after[WEIGHT], expected.astype(np.float32))
    np.testing.assert_array_equal(after["norm"], before["norm"])
    assert (tmp_path / "merged" / "config.json").exists()


def test_weights_are_moved_by_their_last_place(tmp_path: Path) -> None:
    base, adapter = write(tmp_path)
    for name, nudge in (("merged", False), ("nudged", True)):
        lora_files.write_merged(str(base), str(adapter), str(tmp_path / name), nudge=nudge)
    merged, nudged = (load_file(tmp_path / name / "m.safetensors") for name in ("merged", "nudged"))
    assert (merged[WEIGHT] != nudged[WEIGHT]).mean() > 0.9
    np.testing.assert_allclose(merged[WEIGHT], nudged[WEIGHT], rtol=3e-7)
    np.testing.assert_array_equal(merged["norm"], nudged["norm"])


@pytest.mark.parametrize("config", [{"use_dora": True}, {"modules_to_save": ["lm_head"]}])
def test_what_is_more_than_lora_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    base, adapter = write(tmp_path, **config)
    with pytest.raises(ValueError, match="cannot be merged here"):
        lora_files.write_merged(str(base), str(adapter), str(tmp_path / "merged"), nudge=False)


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    names = {
        A.replace("q_proj", "x_proj"): np.ones((2, 8), np.float32),
        B.replace("q_proj", "x_proj"): np.ones((6, 2), np.float32),
    }
    base, adapter = write(tmp_path, names)
    with pytest.raises(
        ValueError, match=r"the adapter changes layers.0.x_proj.weight, which the checkpoint does not have"
    ):
        lora_files.write_merged(str(base), str(adapter), str(tmp_path / "merged"), nudge=False)


def test_a_variant_has_the_shapes_and_other_values(tmp_path: Path) -> None:
    """Also of a new adapter, whose lora_B is zero: its variant does something."""
    pair = {A: np.ones((2, 8), np.float32) * np.arange(8, dtype=np.float32), B: np.zeros((6, 2), np.float32)}
    _, adapter = write(tmp_path, pair)
    lora_files.write_variant(str(adapter), str(tmp_path / "other"), seed=1)
    varied = load_file(tmp_path / "other" / lora_files.WEIGHTS)
    assert {name: tensor.shape for name, tensor in varied.items()} == {A: (2, 8), B: (6, 2)}
    assert np.abs(varied[B]).min() > 0
    assert read_adapter_shape(tmp_path / "other") == AdapterShape(2, ("q_proj",))


def test_what_is_no_adapter_is_refused(tmp_path: Path) -> None:
    base, _ = write(tmp_path)
    with pytest.raises(CkptcheckError, match=r"has no adapter_config.json that says its rank"):
        read_adapter_shape(base)
