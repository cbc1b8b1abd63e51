"""Zeros beside a diagonal are recognised, and names of weights."""

from __future__ import annotations

import numpy as np
import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.values.detectors.structured_tensors import is_diagonal_pattern, is_learned_weight
from tests.factories.checkpoint_cases import CHECKPOINTS


def find_zero_runs(matrix: np.ndarray) -> list[tuple[int, int]]:
    """Return the runs of at least 1 KiB of zero bytes."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], matrix.view(np.uint8).ravel() == 0, [0]))))
    width = matrix.itemsize
    zero_runs = [(-(-int(begin) // width) * width, int(end) // width * width) for begin, end in edges.reshape(-1, 2)]
    return [(begin, end) for begin, end in zero_runs if end - begin >= 1024]


@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize("shape", ["identity", "lower", "upper", "blocks", "two blocks", "band"])
def test_zeros_beside_a_diagonal_are_a_design(shape: str, dtype: str) -> None:
    ones = np.ones((1024, 1024), dtype) * 1.1
    rows, columns = np.indices(ones.shape)
    nonzero = {
        "identity": rows == columns,
        "lower": rows >= columns,
        "upper": rows <= columns,
        "blocks": rows // 64 == columns // 64,
        "two blocks": rows // 512 == columns // 512,
        "band": abs(rows - columns) < 9,
    }[shape]
    matrix = np.where(nonzero, ones, 0).astype(dtype)
    zero_runs = find_zero_runs(matrix)
    assert len(zero_runs) > 8
    assert is_diagonal_pattern(zero_runs, 1024 * matrix.itemsize, matrix.itemsize)


@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize(
    "damage", ["columns", "a corner", "every 64 KiB", "columns beside pruned weights", "three places"]
)
def test_zeros_that_stay_in_their_columns_are_not(damage: str, dtype: str) -> None:
    random = np.random.default_rng(2)
    matrix = random.normal(1, 0.01, (1024, 2048)).astype(dtype)
    match damage:
        case "columns":
            matrix[:, 100:700] = 0
        case "a corner":
            matrix[512:, 1024:] = 0
        case "every 64 KiB":
            matrix.reshape(-1, 65536 // matrix.itemsize)[:, : 4096 // matrix.itemsize] = 0
        case "columns beside pruned weights":
            matrix[random.random(matrix.shape) < 0.2] = 0
            matrix[:, 100:700] = 0
        case "three places":
            matrix.ravel()[[*range(9000, 10000), *range(50000, 52000), *range(300000, 309999)]] = 0
    zero_runs = find_zero_runs(matrix)
    assert zero_runs
    assert not is_diagonal_pattern(zero_runs, 2048 * matrix.itemsize, matrix.itemsize)


def test_names_of_weights() -> None:
    names = {name for name in open_checkpoint(str(CHECKPOINTS / "tiny-qwen3-moe")).tensors if "norm" not in name}
    assert all(is_learned_weight(name) for name in names)
    for name in (
        "a.experts.gate_up_proj",
        "experts.mlp.w1",
        "attn.in_proj_weight",
        "q_proj.lora_A.weight",
        "experts.weight1",
        "text.position_embedding.weight",
    ):
        assert is_learned_weight(name), name
    for name in ("stft_conv.weight", "mel_basis.weight", "dft.weight", "hann_window.weight", "filter_bank.weight"):
        assert not is_learned_weight(name), name
    for name in (
        "mel_embedding.weight",
        "mel_head.weight",
        "window_attention.qkv.weight",
        "basis.weight",
        "fft_block.w1",
    ):
        assert is_learned_weight(name), name
    for name in ("attn.mask", "position_encoding.weight", "pos_encoder.pe", "featurizer.fb", "extractor.melW", "A_log"):
        assert not is_learned_weight(name), name
