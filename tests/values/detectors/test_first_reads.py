"""A pass over a store keeps what detectors read first: they ask for no place of a sound model again, and find the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wide

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.checkpoint.source import Folder
from ckptcheck.values import value_pass
from ckptcheck.values.detectors import first_reads
from ckptcheck.values.detectors.dtype_mislabel import find_mislabelled
from ckptcheck.values.detectors.duplicate_tensors import find_equal_matrices
from ckptcheck.values.detectors.exchanged_projections import find_exchanged_projections
from ckptcheck.values.detectors.init_detection import find_init_groups
from ckptcheck.values.detectors.middle_pieces import find_shifted_matrices
from ckptcheck.values.detectors.norms import find_torn_norms
from ckptcheck.values.detectors.repeated_shares import find_repeated_heads
from ckptcheck.values.detectors.residual_stream import find_transposed_matrices
from ckptcheck.values.detectors.rope_order import measure_rope_order
from ckptcheck.values.detectors.unit_pairs import FIRST_LOOK, collect_pairs, measure_pairs
from ckptcheck.values.value_pass import ValuePass

SHAPE = {
    "hidden_size": 256, "moe_intermediate_size": 128, "intermediate_size": 512, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 32, "vocab_size": 2048, "num_experts": 4,
}  # fmt: skip
LAYERS = 10


class Store(Folder):
    """A folder that is read like a store, and counts the reads."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, str(path))
        self.local = None
        self.reads: list[tuple[str, int, int]] = []

    def read(self, name: str, start: int, length: int) -> bytes:
        self.reads.append((name, start, length))
        return super().read(name, start, length)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A mixture whose query heads share key heads."""
    folder = wide.write(tmp_path / "model", 0.0139, SHAPE)
    assert open_checkpoint(str(folder)).components.num_layers == LAYERS
    return folder


def repeat_rows(folder: Path, name: str, rows: int, other: int) -> None:
    """Copy so many first rows of a matrix to its row `other`."""
    ckpt = open_checkpoint(str(folder))
    shard = ckpt.shards[ckpt.tensor_to_file[name]]
    width = ckpt.tensors[name].nbytes // ckpt.tensors[name].shape[0]
    raw = np.fromfile(folder / shard.name, np.uint8)
    own = raw[shard.locate(name) :]
    own[other * width : (other + rows) * width] = own[: rows * width]
    raw.tofile(folder / shard.name)


def look(ckpt: Checkpoint) -> list[Any]:
    """Return what detectors find, and what they measure."""
    return [
        find_repeated_heads(ckpt),
        find_equal_matrices(ckpt),
        list(find_mislabelled(ckpt)),
        find_init_groups(ckpt),
        find_shifted_matrices(ckpt),
        find_torn_norms(ckpt),
        find_transposed_matrices(ckpt),
        find_exchanged_projections(ckpt),
        measure_rope_order(ckpt),
        measure_pairs(ckpt, collect_pairs(ckpt, FIRST_LOOK)),
    ]


def open_store(folder: Path) -> tuple[Checkpoint, Store]:
    store = Store(folder)
    return Checkpoint(store, value_reader=ValuePass()), store


def test_no_place_of_a_sound_model_is_read_again(model: Path) -> None:
    ckpt, store = open_store(model)
    assert ckpt.values.samples
    store.reads.clear()
    assert look(ckpt) == look(open_checkpoint(str(model), value_reader=ValuePass()))
    assert store.reads == []


@pytest.mark.parametrize("most", [0, 1 << 20, first_reads.MOST_BYTES])
def test_what_is_not_kept_is_read(model: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    repeat_rows(model, "model.layers.3.self_attn.k_proj.weight", 32, 64)
    monkeypatch.setattr(first_reads, "MOST_BYTES", most)
    ckpt, _ = open_store(model)
    assert sum(len(part) for kept in ckpt.values.kept.values() for part in kept.parts) <= most
    assert look(ckpt) == look(open_checkpoint(str(model), value_reader=ValuePass()))
    (head,) = find_repeated_heads(ckpt)
    assert (head.first, head.second) == (0, 2)


@pytest.mark.parametrize(("rest", "reads"), [(4096, 1), (1 << 18, 2)])
def test_the_end_of_a_file_is_no_read_by_itself(
    model: Path, monkeypatch: pytest.MonkeyPatch, rest: int, reads: int
) -> None:
    (file,) = model.glob("*.safetensors")
    data_start = open_checkpoint(str(model)).shards[file.name].data_start
    monkeypatch.setattr(value_pass, "READ_BYTES", file.stat().st_size - data_start - rest)
    ckpt, store = open_store(model)
    assert ckpt.values.complete_shards
    parts = [(start, length) for name, start, length in store.reads if name == file.name and start]
    assert sum(length for _, length in parts) == file.stat().st_size - data_start
    assert len(parts) == reads


def test_nothing_is_kept_of_a_folder(model: Path) -> None:
    """Reading a place of a file takes no longer than handing it on."""
    assert open_checkpoint(str(model), value_reader=ValuePass()).values.kept == {}
