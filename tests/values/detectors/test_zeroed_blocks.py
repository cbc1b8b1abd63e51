"""Blocks of zeros in a real model: lost ones are found with their true length, intended ones are left alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from ckptcheck.checkpoint.open import open_checkpoint
from tests.conftest import needs
from tests.factories.value_cases import find_keys, run_value_rules


def copy_with_zeroed_tail(smollm2: Path, folder: Path, shard: str, begin: int) -> Path:
    """Copy a model and fill one shard with zeros, from a byte of its data on."""
    import damage

    damage.linked_copy(smollm2, folder)
    raw = (smollm2 / shard).read_bytes()
    start = open_checkpoint(str(smollm2)).shards[shard].data_start + begin
    damage.replace(folder / shard, raw[:start] + bytes(len(raw) - start))
    return folder


def test_a_shard_that_was_half_written(smollm2: Path, tmp_path: Path) -> None:
    shard = "model-00003-of-00003.safetensors"
    findings = run_value_rules(copy_with_zeroed_tail(smollm2, tmp_path / "half", shard, 35_000_000))
    assert [finding.code for finding in findings] == ["VAL005", "VAL013"]
    ckpt = open_checkpoint(str(smollm2))
    end = max(tensor.data_offsets[1] for tensor in ckpt.shards[shard].tensors.values())
    first = next(
        name
        for name, entry in ckpt.shards[shard].tensors.items()
        if entry.data_offsets[1] > 35_000_000 >= entry.data_offsets[0]
    )
    assert findings[0].key == first
    assert findings[0].message.startswith(
        f"{end - 35_000_000:,} consecutive bytes are zero, from byte 35,000,000 of the data to the end, "
    )
    zero = [
        name
        for name, entry in ckpt.shards[shard].tensors.items()
        if len(entry.shape) == 2 and entry.data_offsets[0] >= 35_000_000
    ]
    assert findings[0].message.endswith(f"; {len(zero)} matrices are zero as a whole")


def test_a_shard_of_nothing_but_zeros(smollm2: Path, tmp_path: Path) -> None:
    shard = "model-00002-of-00003.safetensors"
    findings = run_value_rules(copy_with_zeroed_tail(smollm2, tmp_path / "empty", shard, 0))
    assert [finding.code for finding in findings] == ["VAL005", "VAL013"]
    matrices = [
        entry for entry in open_checkpoint(str(smollm2)).shards[shard].tensors.values() if len(entry.shape) == 2
    ]
    assert findings[0].message.endswith(f"; {len(matrices)} matrices are zero as a whole")


POSITIONS = "embeddings.position_embeddings.weight"


def write_tables(folder: Path, **tables: NDArray[np.float16]) -> Path:

    rng = np.random.default_rng(0)
    fc1 = {f"model.encoder.layers.{n}.fc1.weight": rng.standard_t(4, (64, 64)).astype(np.float16) for n in range(3)}
    save_file(
        {**fc1, **{f"model.encoder.{name}.weight": table for name, table in tables.items()}},
        folder / "model.safetensors",
    )
    return folder


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_sinusoidal_tables_of_transformers_begin_with_zeros(tmp_path: Path, dtype: str) -> None:
    needs("torch", "transformers")
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
    from transformers.models.whisper.modeling_whisper import sinusoids

    whisper = sinusoids(1500, 1280).numpy().astype(dtype)
    m2m = M2M100SinusoidalPositionalEmbedding.get_embedding(258, 1024, 1).numpy().astype(dtype)
    assert not whisper[0, :640].any()
    assert not m2m[0, :512].any()
    assert not m2m[1].any()
    assert find_keys(write_tables(tmp_path, embed_positions=whisper, embed_positions_2=m2m)) == []
    # under a name that does not say what they are
    assert find_keys(write_tables(tmp_path, embed_steps=whisper)) == []
    whisper[3, 100:1200] = 0
    assert find_keys(write_tables(tmp_path, embed_steps=whisper)) == [("VAL005", "model.encoder.embed_steps.weight")]


@pytest.mark.parametrize(
    ("lost", "seen"),
    [
        ((100, 5000), True),  # a block of a file, from within a row to within another
        ((0, 128 * 384), False),  # whole rows may be unused
        ((256 * 384, 512 * 384), False),  # room for longer texts looks the same
        ((7 * 384, 8 * 384), False),
    ],
    ids=str,
)
def test_positions_of_minilm(minilm: Path, tmp_path: Path, lost: tuple[int, int], seen: bool) -> None:
    import damage

    folder = tmp_path / "ckpt"
    shutil.copytree(minilm, folder)
    ckpt = open_checkpoint(str(folder))
    shard = ckpt.shards[ckpt.tensor_to_file[POSITIONS]]
    start = shard.data_start + shard.tensors[POSITIONS].data_offsets[0]
    raw = bytearray((folder / shard.name).read_bytes())
    raw[start + 4 * lost[0] : start + 4 * lost[1]] = bytes(4 * (lost[1] - lost[0]))
    damage.replace(folder / shard.name, bytes(raw))
    assert find_keys(folder) == ([("VAL005", POSITIONS)] if seen else [])
