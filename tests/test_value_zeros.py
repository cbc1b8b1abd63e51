"""Zeros in a real model: those that a failed write leaves are told with their true length, those of a design are left alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cases import CHECKPOINTS
from safetensors.numpy import load_file, save_file
from test_value_damage import RULES, findings

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.run import run
from ckptcheck.values.measure import attach
from ckptcheck.values.patterned import is_learned, steps_by_rows


def emptied(smollm2: Path, folder: Path, shard: str, begin: int) -> Path:
    """Copy a model and fill one shard with zeros, from a byte of its data on."""
    import damage

    damage.linked_copy(smollm2, folder)
    raw = (smollm2 / shard).read_bytes()
    start = open_checkpoint(str(smollm2)).shards[shard].data_start + begin
    damage.replace(folder / shard, raw[:start] + bytes(len(raw) - start))
    return folder


def test_a_shard_that_was_half_written(smollm2: Path, tmp_path: Path) -> None:
    shard = "model-00003-of-00003.safetensors"
    found = findings(emptied(smollm2, tmp_path / "half", shard, 35_000_000))
    assert [finding.code for finding in found] == ["VAL005", "VAL013"]
    ckpt = open_checkpoint(str(smollm2))
    end = max(tensor.data_offsets[1] for tensor in ckpt.shards[shard].tensors.values())
    first = next(
        name
        for name, entry in ckpt.shards[shard].tensors.items()
        if entry.data_offsets[1] > 35_000_000 >= entry.data_offsets[0]
    )
    assert found[0].key == first
    assert found[0].message.startswith(
        f"{end - 35_000_000:,} bytes in a row are zero, from byte 35,000,000 of the data to the end, "
    )
    assert found[0].message.endswith("; 36 matrices are zero as a whole")


def test_a_shard_of_nothing_but_zeros(smollm2: Path, tmp_path: Path) -> None:
    found = findings(emptied(smollm2, tmp_path / "empty", "model-00002-of-00003.safetensors", 0))
    assert [finding.code for finding in found] == ["VAL005", "VAL013"]
    assert found[0].message.endswith("; 98 matrices are zero as a whole")


@pytest.mark.parametrize("experts", [range(4), [1]])
def test_experts_that_are_zero(tmp_path: Path, experts: list[int]) -> None:
    """Numbered experts are told as those in one tensor are."""
    random = np.random.default_rng(1)
    folder = tmp_path / "moe"
    folder.mkdir()
    source = CHECKPOINTS / "tiny-qwen3-moe"
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    tensors = load_file(source / "model.safetensors")
    for name in list(tensors):
        if ".experts." in name:
            layer, expert = (int(part) for part in name.split(".") if part.isdigit())
            value = random.normal(0, 0.02, (32, 32)).astype(np.float32)
            tensors[name] = np.zeros_like(value) if layer == 1 and expert in experts else value
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (rule,) = (rule for rule in RULES if rule.code == "VAL005")
    report = run(attach(open_checkpoint(str(folder))), [rule])
    assert [finding.severity for finding in report.findings] == ["error"]
    assert report.findings[0].message.endswith(f"; {3 * len(experts)} matrices are zero as a whole")


def runs(matrix: np.ndarray) -> list[tuple[int, int]]:
    """Return the runs of at least 1 KiB of zero bytes."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], matrix.view(np.uint8).ravel() == 0, [0]))))
    width = matrix.itemsize
    found = [(-(-int(begin) // width) * width, int(end) // width * width) for begin, end in edges.reshape(-1, 2)]
    return [(begin, end) for begin, end in found if end - begin >= 1024]


@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize("shape", ["identity", "lower", "upper", "blocks", "two blocks", "band"])
def test_zeros_beside_a_diagonal_are_a_design(shape: str, dtype: str) -> None:
    ones = np.ones((1024, 1024), dtype) * 1.1
    rows, columns = np.indices(ones.shape)
    kept = {
        "identity": rows == columns,
        "lower": rows >= columns,
        "upper": rows <= columns,
        "blocks": rows // 64 == columns // 64,
        "two blocks": rows // 512 == columns // 512,
        "band": abs(rows - columns) < 9,
    }[shape]
    matrix = np.where(kept, ones, 0).astype(dtype)
    found = runs(matrix)
    assert len(found) > 8
    assert steps_by_rows(found, 1024 * matrix.itemsize, matrix.itemsize)


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
    found = runs(matrix)
    assert found
    assert not steps_by_rows(found, 2048 * matrix.itemsize, matrix.itemsize)


def test_names_of_weights() -> None:
    names = {name for name in open_checkpoint(str(CHECKPOINTS / "tiny-qwen3-moe")).tensors if "norm" not in name}
    assert all(is_learned(name) for name in names)
    for name in (
        "a.experts.gate_up_proj",
        "experts.mlp.w1",
        "attn.in_proj_weight",
        "q_proj.lora_A.weight",
        "experts.weight1",
        "text.position_embedding.weight",
    ):
        assert is_learned(name), name
    for name in ("attn.mask", "position_encoding.weight", "pos_encoder.pe", "featurizer.fb", "extractor.melW", "A_log"):
        assert not is_learned(name), name
