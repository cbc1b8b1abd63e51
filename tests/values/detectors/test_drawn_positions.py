"""Tables of learned positions that were drawn anew."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ckptcheck import scan
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.values.detectors.drawn_positions import find_drawn_positions, find_position_tables
from ckptcheck.values.value_pass import ValuePass
from tests.factories.value_cases import copy_with_values, read_raw_values

TABLE = "embeddings.position_embeddings.weight"


def read_table(minilm: Path) -> NDArray[np.float32]:
    ckpt = open_checkpoint(str(minilm))
    return np.frombuffer(read_raw_values(ckpt, TABLE), np.float32).reshape(ckpt.tensors[TABLE].shape)


def test_tables_of_other_places_are_left_out(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    names = (
        "transformer.wpe.weight",
        "model.decoder.embed_positions.weight",
        "vision_model.embeddings.position_embedding.weight",
        "model.query_position_embeddings.weight",
        "bert.embeddings.x_position_embeddings.weight",
    )
    save_file(
        {name: np.zeros((200, 64), np.float32) for name in names}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}), encoding="utf-8")
    assert sorted(find_position_tables(open_checkpoint(str(tmp_path)))) == sorted(names[:2])


@pytest.mark.parametrize("deviation", [0.02, None])
def test_rows_that_were_drawn_anew(minilm: Path, tmp_path: Path, deviation: float | None) -> None:
    """deviation: as transformers starts a table; None: as large as the trained one."""
    rows = read_table(minilm)
    drawn = np.random.default_rng(0).normal(0, deviation or rows.std(), rows.shape).astype(np.float32)
    copy_with_values(minilm, tmp_path / "changed", {TABLE: drawn.tobytes()})
    (finding,) = scan(tmp_path / "changed", select=["VAL012"]).findings
    assert finding.key == TABLE
    assert finding.message == (
        "its 512 rows are like each other by chance alone, as before training, which makes neighbouring positions alike"
    )


def test_half_of_the_positions_may_be_untrained(minilm: Path, tmp_path: Path) -> None:
    rows = read_table(minilm).copy()
    rows[256:] = np.random.default_rng(0).normal(0, 0.02, rows[256:].shape)
    copy_with_values(minilm, tmp_path / "changed", {TABLE: rows.tobytes()})
    assert not scan(tmp_path / "changed", select=["VAL012"]).findings


def test_a_table_that_is_not_used_may_be_drawn(minilm: Path, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(0, 0.05, read_table(minilm).shape).astype(np.float32)
    folder = copy_with_values(minilm, tmp_path / "changed", {TABLE: rows.tobytes()})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config | {"position_embedding_type": "rotary"}), encoding="utf-8")
    ckpt = open_checkpoint(str(folder), value_reader=ValuePass())
    assert find_drawn_positions(ckpt) == []
