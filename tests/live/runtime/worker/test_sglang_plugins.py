"""What SGLang runs for us on a CPU, without SGLang."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from ckptcheck.live.runtime.worker.ckptcheck_worker import sglang_plugins
from tests.conftest import needs


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 128), (8, 32)])
def test_packed_integers_are_dequantized_as_the_checkpoint_means_them(bits: int, group: int) -> None:
    needs("torch")
    import packers
    import torch

    from ckptcheck.live.runtime.worker.ckptcheck_worker.sglang_cpu_kernels import dequantize

    weight = np.random.default_rng(bits).normal(size=(16, 128)).astype(np.float32)
    stored = {role: value for role, (_, value) in packers.pack_quantized(weight, bits, group).items()}
    scale = torch.from_numpy(packers.from_bf16(stored["weight_scale"])).bfloat16()
    found = dequantize(torch.from_numpy(stored["weight_packed"]), scale, bits)
    assert np.array_equal(found.numpy(), packers.dequantized(stored, "pack-quantized", bits=bits, group=group))


def test_a_plugin_is_an_entry_point_here_and_in_what_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    sglang_plugins.install_plugins(str(tmp_path), {"length": "builtins:len"})
    [found] = metadata.entry_points(group="sglang.srt.plugins", name="length")
    assert found.load() is len
    assert os.environ["PYTHONPATH"].split(os.pathsep) == ["/elsewhere", str(tmp_path)]


@pytest.mark.parametrize(("dtype", "off"), [("int8", 1 / 254), ("float8_e4m3fn", 1 / 16)])
def test_inputs_are_rounded_token_by_token(dtype: str, off: float) -> None:
    needs("torch")
    import torch

    from ckptcheck.live.runtime.worker.ckptcheck_worker.sglang_cpu_kernels import round_per_token

    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)) * torch.tensor([1, 1e3, 1e-3, 1, 0])[:, None]
    found = round_per_token(x, getattr(torch, dtype))
    largest = x.abs().amax(-1, keepdim=True)
    assert bool(((found - x).abs() <= largest * off * 1.001).all())
    assert float((found[0] - x[0]).abs().max()) > 0
    assert not found[4].any()
    assert torch.equal(round_per_token(found[:4], getattr(torch, dtype)).round(decimals=3), found[:4].round(decimals=3))
