"""Rounding to 8-bit floats gives the patterns that torch gives."""

from __future__ import annotations

import numpy as np
import pytest

from ckptcheck.compare.matching.cast import encode

torch = pytest.importorskip("torch", reason="torch's casts are what is compared; make test-all installs it")


@pytest.mark.parametrize(("dtype", "kind"), [("F8_E4M3", "float8_e4m3fn"), ("F8_E5M2", "float8_e5m2")])
def test_it_rounds_as_torch_does(dtype: str, kind: str) -> None:
    dice = np.random.default_rng(1)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    bits = dice.integers(0, 1 << 32, 200_000, dtype=np.uint32)
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    # every half and every bf16, ties among them, and what lies one step beside a tie
    for values in (halves, *(each.view(np.float32) for each in (bits, upper, upper + 1, upper - 1))):
        expected = torch.from_numpy(values.copy()).to(getattr(torch, kind)).view(torch.uint8).numpy()
        assert np.array_equal(encode(dtype, values), expected)
    matrix = halves.reshape(256, 256)
    assert encode(dtype, matrix).shape == (256, 256)
