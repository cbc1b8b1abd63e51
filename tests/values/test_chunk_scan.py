"""The fast scan of a chunk equals a slow reference on random bits of every dtype."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptcheck.values.pattern_max as pattern_max
from ckptcheck.checkpoint.tensor import BITS
from ckptcheck.values.chunk_scan import scan_chunk
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.pattern_max import CHUNK
from ckptcheck.values.stats import MIN_ZERO_RUN

FLOATS = ("F64", "F32", "F16", "BF16", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ")


def scan_slowly(raw: bytes, dtype: str) -> tuple[int, int, int, int, float]:
    """Scan element by element, by the definition of the format: return nan, inf, first of each, largest finite magnitude."""
    bits, exponent_bits, bias = {
        "F64": (64, 11, 1023), "F32": (32, 8, 127), "F16": (16, 5, 15), "BF16": (16, 8, 127), "F8_E5M2": (8, 5, 15),
        "F8_E4M3": (8, 4, 7), "F8_E8M0": (8, 8, 127), "F8_E4M3FNUZ": (8, 4, 8), "F8_E5M2FNUZ": (8, 5, 16),
    }[dtype]  # fmt: skip
    sign_bits = 0 if dtype == "F8_E8M0" else 1
    mantissa_bits = bits - sign_bits - exponent_bits
    nan = inf = 0
    first_nan = first_inf = -1
    largest = 0.0
    for index in range(len(raw) * 8 // bits):
        pattern = int.from_bytes(raw[index * bits // 8 : (index + 1) * bits // 8], "little")
        bare = pattern & ((1 << (bits - sign_bits)) - 1)
        exponent, mantissa = bare >> mantissa_bits, bare & ((1 << mantissa_bits) - 1)
        full = exponent == (1 << exponent_bits) - 1
        if dtype.endswith("FNUZ"):
            special = "nan" if pattern == 0x80 else ""
        elif dtype == "F8_E8M0":
            special = "nan" if pattern == 0xFF else ""
        elif dtype == "F8_E4M3":
            special = "nan" if bare == 0x7F else ""
        else:
            special = ("inf" if mantissa == 0 else "nan") if full else ""
        if special == "nan":
            nan += 1
            first_nan = index if first_nan < 0 else first_nan
        elif special == "inf":
            inf += 1
            first_inf = index if first_inf < 0 else first_inf
        elif dtype == "F8_E8M0":
            largest = max(largest, 2.0 ** (exponent - bias))
        else:
            share = mantissa / (1 << mantissa_bits)
            value = math.ldexp(share, 1 - bias) if exponent == 0 else math.ldexp(1 + share, exponent - bias)
            largest = max(largest, value)
    return nan, inf, first_nan, first_inf, largest


def scan_fast(raw: bytes, dtype: str) -> tuple[int, int, int, int, float]:
    from ckptcheck.values.dtypes import decode_magnitude

    stats = scan_chunk(np.frombuffer(raw, np.uint8), dtype)
    return stats.nan, stats.inf, stats.first_nan, stats.first_inf, decode_magnitude(dtype, stats.max_pattern)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_fast_scan_equals_a_slow_one_on_random_bits(
    dtype: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(pattern_max, "_load_kernel", lambda: None)
    random = np.random.default_rng(7)
    for size in (8, 64, 1000, 4096):
        raw = random.bytes(size)
        assert scan_fast(raw, dtype) == scan_slowly(raw, dtype)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
def test_rare_patterns(dtype: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signalling and quiet NaN, payloads, both infinities, both zeros, subnormals, the largest finite number."""
    if not compiled:
        monkeypatch.setattr(pattern_max, "_load_kernel", lambda: None)
    width = FORMATS[dtype].bits // 8
    exponent = {8: 0x7C, 16: 0x7C00 if dtype == "F16" else 0x7F80, 32: 0x7F800000, 64: 0x7FF0 << 48}[8 * width]
    sign = 1 << (8 * width - 1)
    patterns = {
        0,
        1,
        exponent - 1,
        exponent,
        exponent + 1,
        exponent | 3,
        sign,
        sign + 1,
        2 * sign - 1,
        sign - 1,
        0x7F,
        0x80,
        0xFF,
    }
    patterns |= {sign | exponent, sign | (exponent + 1)}
    for pattern in sorted(patterns):
        for place in (0, 3, 7):
            raw = bytearray(8 * width)
            raw[place * width : (place + 1) * width] = pattern.to_bytes(width, "little")
            assert scan_fast(bytes(raw), dtype) == scan_slowly(bytes(raw), dtype), hex(pattern)


def test_every_dtype_of_safetensors_is_known() -> None:
    assert FORMATS.keys() == BITS.keys()
    for dtype in FORMATS:
        raw = np.frombuffer(bytes(range(64)), np.uint8)
        assert scan_chunk(raw, dtype).max_pattern > 0


@pytest.mark.parametrize("compiled", [True, False])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_zero_runs_are_exact(compiled: bool, data: Any) -> None:
    size = data.draw(st.integers(1, 3 * MIN_ZERO_RUN))
    raw = np.full(size, 1, np.uint8)
    for _ in range(data.draw(st.integers(0, 3))):
        begin = data.draw(st.integers(0, size - 1))
        raw[begin : begin + data.draw(st.integers(1, 2 * MIN_ZERO_RUN))] = 0
    shift = data.draw(st.integers(0, 7))
    values = np.concatenate([np.ones(shift, np.uint8), raw])[shift:]
    edges = np.flatnonzero(np.diff(np.concatenate([[1], (raw != 0).astype(int), [1]])))
    runs = [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    expected = [(a, b) for a, b in runs if b - a >= MIN_ZERO_RUN or a == 0 or b == size]
    with nullcontext() if compiled else patch.object(pattern_max, "_load_kernel", lambda: None):
        assert scan_chunk(values, "U8").zero_runs == expected


def test_a_large_tensor_is_the_same_in_pieces() -> None:
    random = np.random.default_rng(3)
    raw = random.bytes(3 * CHUNK + 100 * 2)
    whole = scan_fast(raw, "BF16")
    assert whole == scan_slowly(raw, "BF16")
    assert whole[0] > 100
    with patch.object(pattern_max, "_load_kernel", lambda: None):
        assert scan_fast(raw, "BF16") == whole
