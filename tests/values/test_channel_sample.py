"""The sample of a matrix's channels that the value pass takes, whatever the pieces in which it reads the matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.checkpoint.tensor import Tensor
from ckptcheck.values.channel_sample import MAX_ROW_BYTES, choose_channels, is_sampled, join_sums, sum_squares
from ckptcheck.values.dtypes import FORMATS, decode
from ckptcheck.values.scan_plan import plan_scan
from ckptcheck.values.value_pass import ValuePass, run_value_pass


def read_whole(path: Path, begin: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    patterns = np.fromfile(path, FORMATS[dtype].unsigned, int(np.prod(shape)), offset=begin)
    return decode(dtype, patterns).reshape(shape).astype(np.float64)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F64", "F8_E4M3", "I8"])
@pytest.mark.parametrize("shape", [(40, 40), (256, 700), (1000, 300)])
@pytest.mark.parametrize("rows", [1, 7, 33, 10_000])
def test_pieces_add_up_to_the_whole(dtype: str, shape: tuple[int, int], rows: int) -> None:
    random = np.random.default_rng(0)
    bits = FORMATS[dtype].bits
    values = random.standard_normal(shape, np.float32)
    patterns = {
        "BF16": lambda: (values.view(np.uint32) >> 16).astype(np.uint16),
        "F16": lambda: values.astype(np.float16),
        "F32": lambda: values,
        "F64": lambda: values.astype(np.float64),
        "F8_E4M3": lambda: random.integers(0, 0x7F, shape, np.uint8),
        "I8": lambda: random.integers(-128, 128, shape, np.int8),
    }[dtype]()
    raw = np.frombuffer(patterns.tobytes(), np.uint8)
    width = shape[1] * bits // 8
    pieces = [
        tuple(part.tobytes() for part in sum_squares(raw[first * width :][: rows * width], dtype, first, shape))
        for first in range(0, shape[0], rows)
    ]
    sample = join_sums(pieces, shape)  # type: ignore[arg-type]
    assert sample is not None
    exact = decode(dtype, raw.view(FORMATS[dtype].unsigned)).reshape(shape).astype(np.float64)
    grid = exact[choose_channels(shape[0])][:, choose_channels(shape[1])] ** 2
    np.testing.assert_allclose(sample.rows, grid.mean(1), rtol=1e-5)
    np.testing.assert_allclose(sample.columns, grid.mean(0), rtol=1e-5)
    assert join_sums(pieces[:-1], shape) is None


def test_a_pass_over_a_real_model_samples_what_is_stored(smollm2: Path) -> None:
    ckpt = open_checkpoint(str(smollm2), value_reader=ValuePass(jobs=2))
    samples = ckpt.values.samples
    assert len(samples) == 30 * 7
    for name in list(samples)[:: len(samples) // 5]:
        shard = ckpt.shards[ckpt.tensor_to_file[name]]
        tensor = shard.tensors[name]
        begin = shard.data_start + tensor.data_offsets[0]
        exact = read_whole(smollm2 / shard.name, begin, tensor.dtype, tensor.shape)
        grid = exact[choose_channels(tensor.shape[0])][:, choose_channels(tensor.shape[1])] ** 2
        np.testing.assert_allclose(samples[name].rows, grid.mean(1), rtol=1e-5)
        np.testing.assert_allclose(samples[name].columns, grid.mean(0), rtol=1e-5)


@pytest.mark.parametrize("most", [1 << 10, 100_000, 1 << 27])
def test_the_size_of_the_pieces_changes_nothing(smollm2: Path, most: int) -> None:
    ckpt = open_checkpoint(str(smollm2), value_reader=ValuePass())
    shards = {name: shard for name, shard in ckpt.shards.items() if name.startswith("model-00003")}
    values = run_value_pass(ckpt.source, plan_scan(ckpt.source, shards, {}, {}, most))
    name = "model.layers.29.mlp.down_proj.weight"
    for part in ("rows", "columns"):
        ours, usual = getattr(values.samples[name], part), getattr(ckpt.values.samples[name], part)
        np.testing.assert_allclose(ours, usual, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "nbytes", "expected"),
    [
        ("layers.0.q.weight", "BF16", (64, 64), 8192, True),
        ("layers.0.q.weight", "BF16", (64,), 128, False),
        ("layers.0.q.weight", "BF16", (64, 31), 64 * 31 * 2, False),
        ("layers.0.q.weight", "I32", (64, 64), 16384, False),
        ("layers.0.q.weight", "BF16", (64, 64), 8190, False),
        ("layers.0.mlp.experts.3.up.weight", "BF16", (64, 64), 8192, False),
        ("wide", "I8", (32, MAX_ROW_BYTES), 32 * MAX_ROW_BYTES, True),
        ("wide", "I8", (32, MAX_ROW_BYTES + 1), 32 * MAX_ROW_BYTES + 32, False),
    ],
)
def test_which_tensors_are_sampled(name: str, dtype: str, shape: tuple[int, ...], nbytes: int, expected: bool) -> None:
    assert is_sampled(name, Tensor(dtype, shape, (0, nbytes))) is expected
