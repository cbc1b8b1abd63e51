"""Casts against torch, for every pattern of 16 bits and many of 32, and what counts as equal."""

from __future__ import annotations

import numpy as np
import pytest

from ckptcheck.compare.matching.cast import canonicalize_nan, cast_patterns, is_lossless_cast, parse_dtype
from ckptcheck.compare.matching.equality import CompareSpec, compare_elements

torch = pytest.importorskip("torch", reason="pip install torch")
TORCH = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
BITS = {"F64": np.uint64, "F32": np.uint32, "F16": np.uint16, "BF16": np.uint16}


def patterns(dtype: str) -> np.ndarray:
    if BITS[dtype] is np.uint16:
        return np.arange(1 << 16, dtype=np.uint16)
    random = np.random.default_rng(0)
    some = random.integers(0, np.iinfo(BITS[dtype]).max, 1 << 18, BITS[dtype], endpoint=True)
    normal = random.standard_normal(1 << 18).astype({"F64": np.float64, "F32": np.float32}[dtype]).view(BITS[dtype])
    ties = (np.arange(1 << 16, dtype=np.uint64) << 16 | 0x8000).astype(np.uint32) if dtype == "F32" else normal
    return np.concatenate([some, normal, ties])


def as_torch(bits: np.ndarray, dtype: str) -> torch.Tensor:
    signed = bits.view(f"i{bits.itemsize}")
    return torch.from_numpy(signed.copy()).view(getattr(torch, TORCH[dtype]))


@pytest.mark.parametrize("source", TORCH)
@pytest.mark.parametrize("target", TORCH)
def test_a_cast_is_torchs(source: str, target: str) -> None:
    bits = patterns(source)
    expected = as_torch(bits, source).to(getattr(torch, TORCH[target]))
    found = as_torch(cast_patterns(bits, source, target), target)
    nan = expected.isnan()
    assert torch.equal(nan, found.isnan())
    width = {"F64": torch.int64, "F32": torch.int32}.get(target, torch.int16)
    assert torch.equal(expected[~nan].view(width), found[~nan].view(width))


@pytest.mark.parametrize("dtype", TORCH)
def test_all_nan_become_one_and_nothing_else_changes(dtype: str) -> None:
    bits = patterns(dtype)
    nan = as_torch(bits, dtype).isnan().numpy()
    found = canonicalize_nan(bits, dtype)
    assert len(set(found[nan].tolist())) == 1
    assert np.array_equal(found[~nan], bits[~nan])


@pytest.mark.parametrize("source", TORCH)
@pytest.mark.parametrize("target", TORCH)
def test_what_keeps_all_can_be_cast_back(source: str, target: str) -> None:
    if is_lossless_cast(source, target):
        bits = canonicalize_nan(patterns(source), source)
        assert np.array_equal(
            canonicalize_nan(cast_patterns(cast_patterns(bits, source, target), target, source), source), bits
        )


def test_names_of_dtypes() -> None:
    assert [parse_dtype(name) for name in ("torch.bfloat16", "bf16", "half", "F32", "int8", None)] == [
        "BF16", "BF16", "F16", "F32", None, None,
    ]  # fmt: skip


def bits(*values: float) -> np.ndarray:
    return np.array(values, np.float32).view(np.uint32)


def test_equality_is_that_of_bits() -> None:
    how = CompareSpec("F32", "F32", "F32")
    assert compare_elements(bits(0.0, 1.0), bits(-0.0, 1.0), how, (5,)).first == (5,)
    payload = np.array([0x7FC00000, 0x7FC00001], np.uint32)
    assert compare_elements(payload, payload, how, (0,)).different == 0
    seen = compare_elements(payload, payload[::-1], how, (0,))
    assert (seen.different, seen.not_finite, seen.largest) == (2, 2, 0.0)


def test_a_tolerance_is_of_the_first_sides_numbers() -> None:
    loose = CompareSpec("F32", "F32", "F32", rtol=0.1, atol=0.01)
    assert compare_elements(bits(1.0, 0.0), bits(1.105, 0.0099), loose, (0,)).different == 0
    assert compare_elements(bits(1.0, 0.0), bits(1.12, 0.02), loose, (0,)).different == 2
    assert compare_elements(bits(np.nan, np.inf), bits(np.nan, np.inf), loose, (0,)).different == 0
    assert compare_elements(bits(np.nan, 1.0, np.inf), bits(1.0, np.nan, -np.inf), loose, (0,)).different == 3


def test_after_a_cast_any_nan_is_a_nan() -> None:
    first = np.array([0x7F800001, 0x3F800000], np.uint32)
    second = np.array([0xFFFF, 0x3F80], np.uint16)
    assert compare_elements(first, second, CompareSpec("F32", "BF16", "BF16"), (0,)).different == 0


@pytest.mark.parametrize("source", TORCH)
@pytest.mark.parametrize("target", TORCH)
def test_a_scalar_is_cast_as_a_row_of_one_is(source: str, target: str) -> None:
    """numpy returns a number for an array without dimensions, and a number takes no items."""
    for bits in patterns(source)[:: 1 << 14]:
        row = np.array([bits])
        assert cast_patterns(row.reshape(()), source, target) == cast_patterns(row, source, target)[0]
