"""Sketches: samples that the value pass takes, and what they say of a tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.values.scan_plan import plan_scan
from ckptcheck.values.sketch import MOST_ELEMENTS, SHARES, SKETCHED, sketch_samples, take_sample
from ckptcheck.values.value_pass import ValuePass, run_value_pass
from tests.factories.checkpoint_cases import CHECKPOINTS


def raw(values: np.ndarray) -> np.ndarray:
    return np.frombuffer(values.tobytes(), np.uint8)


def test_a_large_tensor_is_sketched_near_the_truth() -> None:
    values = np.random.default_rng(0).normal(0.01, 0.02, 1_000_000).astype(np.float32)
    values[::50] = 0
    sample = take_sample(raw(values), "F32", MOST_ELEMENTS)
    sketch = sketch_samples({"w": ("F32", sample)})["w"]
    assert sketch.elements == len(sample) // 4 == MOST_ELEMENTS
    assert sketch.mean == pytest.approx(values.mean(), abs=0.001)
    assert sketch.std == pytest.approx(values.std(), rel=0.05)
    assert sketch.rms == pytest.approx(np.sqrt(np.square(values).mean()), rel=0.05)
    assert np.allclose(sketch.quantiles, np.quantile(values, SHARES), atol=0.005)
    assert sketch.zeros == pytest.approx(0.02, abs=0.01)


def test_a_sample_is_spread_over_the_whole_tensor() -> None:
    sample = np.frombuffer(take_sample(raw(np.arange(100_000, dtype=np.float32)), "F32", 256), np.float32)
    assert (sample[0], sample[-1]) == (0, 99_999)
    assert np.diff(sample).max() < 100_000 / 6


def test_what_is_not_finite_is_left_out() -> None:
    values = np.array([np.nan, 2, np.inf, 4], np.float16)
    found = sketch_samples({"a": ("F16", values.tobytes()), "b": ("F16", np.full(4, np.nan, np.float16).tobytes())})
    assert set(found) == {"a"}
    assert (found["a"].elements, found["a"].mean, found["a"].std) == (2, 3, 1)


@pytest.mark.parametrize("dtype", sorted(SKETCHED))
def test_every_dtype_of_numbers_can_be_sketched(dtype: str) -> None:
    patterns = np.random.default_rng(1).integers(0, 255, 4096, dtype=np.uint8)
    sketch = sketch_samples({"w": (dtype, take_sample(patterns, dtype, 64))})["w"]
    assert 32 <= sketch.elements <= 4096
    assert list(sketch.quantiles) == sorted(sketch.quantiles)


def test_a_tensor_that_is_read_in_pieces_has_one_sample(tmp_path: Path) -> None:
    ckpt = open_checkpoint(str(CHECKPOINTS / "tiny-llama"))
    ckpt.read_headers()
    whole = {
        name: value
        for path in (CHECKPOINTS / "tiny-llama").glob("*.safetensors")
        for name, value in load_file(path).items()
    }
    for most in (1 << 20, 200):
        values = run_value_pass(ckpt.source, plan_scan(ckpt.source, ckpt.shards, {}, {}, most, takes_samples=True))
        for name, sketch in values.sketches.items():
            assert sketch.elements == whole[name].size  # small enough to be taken whole
            assert sketch.rms == pytest.approx(np.sqrt(np.square(whole[name].astype(np.float64)).mean()), rel=1e-5)


def test_only_who_asks_pays() -> None:
    for takes_samples in (False, True):
        ckpt = open_checkpoint(str(CHECKPOINTS / "tiny-llama"), value_reader=ValuePass(takes_samples=takes_samples))
        assert bool(ckpt.values.element_samples) is takes_samples
