"""Rows that hold the same bytes as others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.values.detectors.similar_rows import find_duplicate_rows
from ckptcheck.values.value_pass import ValuePass
from tests.factories.value_cases import copy_with_embedding, find_embedding_codes


def test_a_real_model_has_copies_that_nobody_uses(smollm2: Path) -> None:
    """Fifteen tokens that SmolLM2 never saw share four rows: that is sound, and the evidence shows them all."""
    ckpt = open_checkpoint(str(smollm2), value_reader=ValuePass())
    duplicates = find_duplicate_rows(ckpt, "model.embed_tokens.weight", range(49152))
    assert {row: others for row, others in duplicates.items() if row < 10} == {
        5: [9, 11, 36743],
        7: [45175],
        8: [10, 13, 15, 16, 36744, 48047],
        9: [5, 11, 36743],
    }
    assert len(duplicates) == 15


def test_a_used_token_that_is_a_copy_of_a_real_untrained_row(smollm2: Path, tmp_path: Path) -> None:
    def copy(*tokens: int) -> Callable[[NDArray[np.uint16]], None]:
        def change(rows: NDArray[np.uint16]) -> None:
            rows[list(tokens)] = rows[8]

        return change

    assert find_embedding_codes(copy_with_embedding(tmp_path / "end", smollm2, copy(2))) == ["EMB004"]
    assert find_embedding_codes(copy_with_embedding(tmp_path / "start", smollm2, copy(1))) == ["EMB005"]
    assert find_embedding_codes(copy_with_embedding(tmp_path / "both", smollm2, copy(1, 2))) == ["EMB004", "EMB005"]
    assert find_embedding_codes(copy_with_embedding(tmp_path / "unused", smollm2, copy(3, 4, 5, 6))) == []


def test_a_thousand_copies_are_not_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.numpy import save_file

    weight = np.random.default_rng(0).normal(0, 1, (2000, 64)).astype(np.float16)
    weight[1000:] = weight[0]
    save_file({"model.embed_tokens.weight": weight}, tmp_path / "model.safetensors")
    ckpt = open_checkpoint(str(tmp_path / "model.safetensors"), value_reader=ValuePass())
    _ = ckpt.values
    reads, real = [], ckpt.source.read
    monkeypatch.setattr(ckpt.source, "read", lambda *where: reads.append(where) or real(*where))
    assert find_duplicate_rows(ckpt, "model.embed_tokens.weight", [0, 1]) == {0: list(range(1000, 2000))}
    assert 16 <= len(reads) <= 20
