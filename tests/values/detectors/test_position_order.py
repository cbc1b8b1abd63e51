"""Tables of learned positions whose rows are in another order than they were trained in."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ckptcheck import scan
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.values.detectors.position_order import (
    DisorderedPositions,
    MovedPart,
    find_drawn_positions,
    find_position_tables,
    judge_order,
)
from ckptcheck.values.value_pass import ValuePass
from tests.factories.value_cases import copy_with_values, read_raw_values

TABLE = "embeddings.position_embeddings.weight"


def read_table(minilm: Path) -> NDArray[np.float32]:
    ckpt = open_checkpoint(str(minilm))
    return np.frombuffer(read_raw_values(ckpt, TABLE), np.float32).reshape(ckpt.tensors[TABLE].shape)


def find_disorder(minilm: Path, folder: Path, rows: NDArray[np.float32]) -> list[str]:
    """Return what a scan says of the model with other positions."""
    copy_with_values(minilm, folder, {TABLE: np.ascontiguousarray(rows).tobytes()})
    report = scan(folder, select=["EMB010"])
    assert not report.crashed
    assert [finding.key for finding in report.findings] == [TABLE] * len(report.findings)
    return [finding.message for finding in report.findings]


def judge(rows: NDArray[Any]) -> DisorderedPositions | MovedPart | None:
    return judge_order(len(rows), rows.__getitem__)


def join_parts(rows: NDArray[Any], order: Sequence[int]) -> NDArray[Any]:
    parts = np.array_split(rows, len(order))
    return np.concatenate([parts[part] for part in order])


def test_rows_in_another_order(minilm: Path, tmp_path: Path) -> None:
    rows = read_table(minilm)
    shuffled = rows[np.random.default_rng(0).permutation(len(rows))]
    assert find_disorder(minilm, tmp_path / "changed", shuffled) == [
        "of the 511 of 512 rows that are like another one, 12 are most alike a neighbour, and training makes nearly all so: the "
        "rows are in another order than they were trained in"
    ]


def test_parts_that_changed_places(minilm: Path, tmp_path: Path) -> None:
    rows = read_table(minilm)
    assert find_disorder(minilm, tmp_path / "changed", join_parts(rows, (1, 0))) == [
        "row 0 continues row 511 (cosine 0.83, and at most 0.08 at the seams where they stand): of its 2 equal parts, some stand "
        "in another place than they were trained for"
    ]
    for order in ((0, 2, 1, 3), (3, 2, 1, 0), (1, 0, 2, 3), (0, 1, 3, 2, 4, 5, 6, 7), (7, 6, 5, 4, 3, 2, 1, 0)):
        found = judge(join_parts(rows, order))
        assert isinstance(found, MovedPart), order
        assert found.parts <= len(order)


def test_a_trained_table_is_in_order(minilm: Path, tmp_path: Path) -> None:
    rows = read_table(minilm)
    assert find_disorder(minilm, tmp_path / "sound", rows) == []
    changes: list[Callable[[NDArray[Any]], NDArray[Any]]] = [
        lambda rows: np.concatenate([rows, rows]),  # as Longformer is made of RoBERTa
        lambda rows: np.concatenate([rows] * 8),
        lambda rows: np.concatenate([rows[:2], rows]),
        lambda rows: rows[::-1],
        partial(np.roll, shift=2, axis=0),
        lambda rows: rows + np.random.default_rng(1).normal(0, rows.std() / 2, rows.shape),
    ]
    assert [judge(change(rows)) for change in changes] == [None] * len(changes)


@pytest.mark.parametrize("trained", [0, 100, 256])
def test_positions_that_were_never_trained_have_no_order(minilm: Path, trained: int) -> None:
    rows = read_table(minilm).copy()
    rows[trained:] = np.random.default_rng(2).normal(0, rows.std(), rows[trained:].shape)
    assert judge(rows) is None


def test_sines_are_in_order() -> None:
    angles = np.arange(1024)[:, None] / 10000 ** (np.arange(128) / 128)
    sines = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    assert judge(sines) is None
    found = judge(sines[np.random.default_rng(3).permutation(len(sines))])
    assert isinstance(found, DisorderedPositions)


def test_patches_of_an_image_are_in_order() -> None:
    """Each is like those beside it, and like those above and below."""
    random, side = np.random.default_rng(4), 24
    smooth = np.exp(-((np.arange(side)[:, None] - np.arange(side)) ** 2) / 8)
    plane = np.einsum("ia,jb,abd->ijd", smooth, smooth, random.normal(size=(side, side, 96)))
    assert judge(plane.reshape(side * side, 96)) is None


def test_numbers_that_are_none_are_left_to_other_rules() -> None:
    rows = np.random.default_rng(5).normal(size=(256, 128))
    for number in (np.nan, np.inf):
        rows[3, 5] = number
        assert judge(rows) is None
    assert judge(np.zeros((256, 128))) is None


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
    (finding,) = scan(tmp_path / "changed", select=["VAL012", "EMB010"]).findings
    assert finding.key == TABLE
    assert finding.message == (
        "its 512 rows are like each other by chance alone, as before training, which makes neighbouring positions alike"
    )


def test_half_of_the_positions_may_be_untrained(minilm: Path, tmp_path: Path) -> None:
    rows = read_table(minilm).copy()
    rows[256:] = np.random.default_rng(0).normal(0, 0.02, rows[256:].shape)
    copy_with_values(minilm, tmp_path / "changed", {TABLE: rows.tobytes()})
    assert not scan(tmp_path / "changed", select=["VAL012", "EMB010"]).findings


def test_a_table_that_is_not_used_may_be_drawn(minilm: Path, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(0, 0.05, read_table(minilm).shape).astype(np.float32)
    folder = copy_with_values(minilm, tmp_path / "changed", {TABLE: rows.tobytes()})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config | {"position_embedding_type": "rotary"}), encoding="utf-8")
    ckpt = open_checkpoint(str(folder), value_reader=ValuePass())
    assert find_drawn_positions(ckpt) == []
