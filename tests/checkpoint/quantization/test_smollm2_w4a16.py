"""SmolLM2-135M in W4A16: a real model's weights, packed, are sound and still the model's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import packers
import smollm2_w4a16

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.values.value_pass import ValuePass
from tests.factories.checkpoint_cases import read_tensors


def test_it_is_sound_and_close_to_what_it_was(smollm2: Path, tmp_path: Path) -> None:
    out = tmp_path / "w4a16"
    smollm2_w4a16.build(smollm2, out)
    report = run_rules(open_checkpoint(str(out), value_reader=ValuePass()), rule_loader.load_rules())
    # SmolLM2 as transformers 5 saved it has infos for readers on transformers 4
    assert [f"{each.code} {each.message}" for each in report.findings if each.severity != "info"] == []
    assert report.verdict == "clean"
    shards = json.loads((smollm2 / "model.safetensors.index.json").read_text(encoding="utf-8"))["weight_map"]
    name = "model.layers.7.mlp.down_proj"
    whole = packers.from_bf16(read_tensors(smollm2 / shards[f"{name}.weight"])[f"{name}.weight"][1])
    packed = read_tensors(out / shards[f"{name}.weight"])
    stored = {role: packed[f"{name}.{role}"][1] for role in ("weight_packed", "weight_scale", "weight_shape")}
    error = packers.dequantized(stored, "pack-quantized", group=64) - whole
    assert np.sqrt((error**2).mean()) < 0.15 * whole.std()
