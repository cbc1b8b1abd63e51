"""Rows of embeddings: equal to torch and to NeMo-RL's method, and judged by whether their tokens are used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import needs

from ckptcheck import pack
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.run import run
from ckptcheck.values import rows as rows_module
from ckptcheck.values.measure import attach
from ckptcheck.values.rows import row_stats

RULES = [rule for rule in pack.load() if rule.code.startswith("EMB")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "float8_e4m3fn"])
def test_statistics_are_those_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    needs("torch")
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    weight = (torch.randn(257, 33) * 0.3).to(getattr(torch, dtype))
    weight[3] = 0
    weight[7] = 0.5
    save_file(
        {"model.embed_tokens.weight": weight, "model.layers.0.x.weight": weight[:2].clone()},
        tmp_path / "model.safetensors",
    )
    monkeypatch.setattr(rows_module, "READ", 33 * 8 * 10)
    ckpt = open_checkpoint(str(tmp_path / "model.safetensors"))
    found = row_stats(ckpt, "model.embed_tokens.weight", jobs=2)
    exact = weight.to(torch.float64)
    assert np.allclose(found.mean_abs, exact.abs().mean(1), rtol=1e-5)
    assert np.array_equal(found.max_abs, exact.abs().amax(1).float())
    assert np.allclose(found.std, exact.std(1), rtol=1e-4, atol=1e-6)
    # NeMo-RL, tools/model_diagnostics/3.check_hf_model_embeddings_untrained.py
    assert found.near_zero(1e-10).nonzero()[0].tolist() == [3]
    assert found.identical(1e-8).nonzero()[0].tolist() == [3, 7]


def _zero_rows(folder: Path, source: Path, *tokens: int) -> Path:
    import damage

    damage.linked_copy(source, folder)
    ckpt = open_checkpoint(str(folder))
    name = ckpt.anatomy.embedding
    assert name is not None
    shard, tensor = ckpt.shards[ckpt.holders[name]], ckpt.tensors[name]
    width = tensor.nbytes // tensor.shape[0]
    raw = bytearray((folder / shard.name).read_bytes())
    for token in tokens:
        begin = shard.data_start + tensor.data_offsets[0] + token * width
        raw[begin : begin + width] = bytes(width)
    damage.replace(folder / shard.name, bytes(raw))
    return folder


def test_a_real_model_with_untrained_special_tokens(smollm2: Path, tmp_path: Path) -> None:
    """<|im_start|> is 1 and <|im_end|> is 2: the template emits both. 5 and 6 are special and unused."""
    sound = run(attach(open_checkpoint(str(smollm2))), RULES)
    assert (sound.findings, len(sound.passed)) == ((), 3)
    report = run(attach(open_checkpoint(str(_zero_rows(tmp_path / "ckpt", smollm2, 1, 2, 5, 6)))), RULES)
    assert [(finding.code, finding.severity) for finding in report.findings] == [
        ("EMB001", "error"),
        ("EMB002", "warning"),
    ]
    used, idle = (finding.message for finding in report.findings)
    assert used.startswith("2 used tokens have an untrained row: 1 <|im_start|>, 2 <|im_end|>; 1 is near zero, and ")
    assert idle.startswith("2 rows are untrained (the first is near zero): 5 ")


def test_thresholds_are_the_users(smollm2: Path) -> None:
    from ckptcheck.checkpoint.options import Options

    ckpt = attach(open_checkpoint(str(smollm2)))
    ckpt.options = Options(near_zero=3.0)
    assert [finding.code for finding in run(ckpt, RULES).findings] == ["EMB001", "EMB002"]
