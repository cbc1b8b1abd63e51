"""The statistics of rows are those of torch."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.values.detectors import row_stats as rows_module
from ckptcheck.values.detectors.row_stats import RowStats, compute_row_stats
from tests.conftest import needs


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
    monkeypatch.setattr(rows_module, "READ_BYTES", 33 * 8 * 10)
    ckpt = open_checkpoint(str(tmp_path / "model.safetensors"))
    stats = compute_row_stats(ckpt, "model.embed_tokens.weight", jobs=2)
    exact = weight.to(torch.float64)
    assert np.allclose(stats.mean_abs, exact.abs().mean(1), rtol=1e-5)
    assert np.array_equal(stats.max_abs, exact.abs().amax(1).float())
    assert np.allclose(stats.std, exact.std(1), rtol=1e-4, atol=1e-6)
    # NeMo-RL, tools/model_diagnostics/3.check_hf_model_embeddings_untrained.py
    assert stats.near_zero(1e-10).nonzero()[0].tolist() == [3]
    assert stats.identical(1e-8).nonzero()[0].tolist() == [3, 7]


def test_rows_near_the_largest_number_of_f32_are_judged_without_an_overflow() -> None:
    sizes = np.full(400, 3e38, np.float32)
    sizes[:40] = 2e37
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert RowStats(sizes, sizes, sizes / 2).low_cluster(0.5, np.zeros(400, bool), width=64).sum() == 40
