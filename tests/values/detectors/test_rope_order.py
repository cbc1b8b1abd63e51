"""The order of the channels of queries and keys, on a trained model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.values.detectors.rope_order import RopeOrder, measure_rope_order
from ckptcheck.values.value_pass import ValuePass
from tests.conftest import needs

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("smollm2")]
HEAD = 64


def measure(folder: Path) -> RopeOrder | None:
    return measure_rope_order(open_checkpoint(str(folder), value_reader=ValuePass()))


def rewrite(source: Path, folder: Path, change: Callable[[Any], Any], *, model_type: str = "llama") -> Path:
    """Copy the model in one file, with changed queries and keys."""
    from safetensors.torch import load_file, save_file

    needs("torch")
    folder.mkdir()
    tensors: dict[str, Any] = {}
    for shard in source.glob("*.safetensors"):
        tensors |= load_file(shard)
    for name in tensors:
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            tensors[name] = change(tensors[name]).contiguous().clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"model_type": model_type}), encoding="utf-8")
    shutil.copy(source / "generation_config.json", folder)
    return folder


def interleave(matrix: Any) -> Any:
    """Bring the rows of each head into Meta's order."""
    return matrix.reshape(-1, 2, HEAD // 2, matrix.shape[1]).swapaxes(1, 2).reshape(matrix.shape)


def test_a_trained_model_is_sound(smollm2: Path) -> None:
    order = measure(smollm2)
    assert order is not None
    assert min(order.neighbours, order.half) > 0.6
    assert not order.is_interleaved


def test_a_trained_model_in_the_other_order_is_seen(smollm2: Path, tmp_path: Path) -> None:
    needs("torch", "transformers")
    folder = rewrite(smollm2, tmp_path / "meta", interleave)
    order = measure(folder)
    assert order is not None
    assert order.neighbours > 0.6
    assert order.half < -0.1
    report = ckptcheck.scan(folder, select=["VAL025"])
    assert [finding.key for finding in report.findings] == ["model.layers.0.self_attn.q_proj.weight"]
    assert "seem to be paired as neighbours" in report.findings[0].message
    other = rewrite(smollm2, tmp_path / "glm", interleave, model_type="glm4")
    assert measure(other) is None, "a family that pairs neighbours by design"
