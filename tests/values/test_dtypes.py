"""Patterns decode to the numbers that torch decodes them to."""

from __future__ import annotations

import numpy as np
import pytest

from ckptcheck.values.dtypes import FORMATS, decode_float64
from tests.conftest import needs

TORCH_DTYPES = {
    "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64",
}  # fmt: skip


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_all_values_of_a_dtype_are_those_of_torch(dtype: str) -> None:
    needs("torch")
    import torch

    width = FORMATS[dtype].bits // 8
    raw = bytes(range(256)) if width == 1 else np.random.default_rng(1).bytes(width * 4096)
    ours = decode_float64(dtype, np.frombuffer(raw, FORMATS[dtype].unsigned))
    theirs = torch.frombuffer(bytearray(raw), dtype=getattr(torch, TORCH_DTYPES[dtype])).to(torch.float64).numpy()
    assert np.array_equal(ours, theirs, equal_nan=True)


@pytest.mark.parametrize(
    ("dtype", "pattern"), [("F16", 0x7C01), ("BF16", 0x7F81), ("F32", 0x7F800001), ("F64", 0x7FF0000000000001)]
)
def test_a_signalling_nan_is_decoded_without_a_warning(dtype: str, pattern: int) -> None:
    """Warnings are errors here."""
    assert np.isnan(decode_float64(dtype, np.array([pattern], FORMATS[dtype].unsigned))).all()
