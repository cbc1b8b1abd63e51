"""The random mixture of experts that GPUs are measured with is a sound checkpoint of the size that was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import wide

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules

SMALL = {
    "vocab_size": 256, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32,
}  # fmt: skip


@pytest.mark.parametrize(("gigabytes", "layers"), [(1, 1), (4, 3), (20, 16), (0.1, 1)])
def test_layers_come_nearest_to_the_size(gigabytes: float, layers: int) -> None:
    assert wide.config(gigabytes)["num_hidden_layers"] == layers


def test_it_is_sound_in_several_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "SHARD", 50_000)
    monkeypatch.setattr(wide, "POOL", 1 << 12)
    folder = wide.write(tmp_path / "moe", 0.0003, SMALL)
    ckpt = open_checkpoint(str(folder))
    report = run_rules(ckpt, [rule for rule in rule_loader.load_rules() if rule.on == "checkpoint"])
    assert [finding.code for finding in report.findings if finding.severity == "error"] == []
    assert len(ckpt.shards) > 3
    assert 0.8 < sum(tensor.nbytes for tensor in ckpt.tensors.values()) / 3e5 < 1.25
