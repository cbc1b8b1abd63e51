"""SmolLM2-135M in W4A16: a real model's weights, packed, are sound and still the model's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from cases import ROOT, read_tensors

from ckptcheck import pack
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.run import run
from ckptcheck.values.measure import attach

sys.path.insert(0, str(ROOT / "fixtures"))
import packers
import smollm2_w4a16


def test_it_is_sound_and_close_to_what_it_was(smollm2: Path, tmp_path: Path) -> None:
    out = tmp_path / "w4a16"
    smollm2_w4a16.build(smollm2, out)
    report = run(attach(open_checkpoint(str(out))), pack.load())
    assert [f"{finding.code} {finding.message}" for finding in report.findings] == []
    assert report.verdict == "clean"
    shards = json.loads((smollm2 / "model.safetensors.index.json").read_text(encoding="utf-8"))["weight_map"]
    name = "model.layers.7.mlp.down_proj"
    whole = packers.from_bf16(read_tensors(smollm2 / shards[f"{name}.weight"])[f"{name}.weight"][1])
    packed = read_tensors(out / shards[f"{name}.weight"])
    stored = {role: packed[f"{name}.{role}"][1] for role in ("weight_packed", "weight_scale", "weight_shape")}
    error = packers.dequantized(stored, "pack-quantized", group=64) - whole
    assert np.sqrt((error**2).mean()) < 0.15 * whole.std()
