"""The counts of near-zero and identical rows stand in every scan that reads values."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import ckptcheck
from tests.paths import ROOT

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def untied(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "fixtures" / "checkpoints" / "tiny-llama", folder)
    return folder


def rewrite(folder: Path, change: object) -> None:
    """Change the tensors of every file of a checkpoint."""
    for file in folder.glob("*.safetensors"):
        weights = load_file(file)
        for tensor in weights.items():
            change(*tensor)  # type: ignore[operator]
        save_file(weights, file, {"format": "pt"})


def counts(report: object) -> dict[str, tuple[object, object]]:
    section = next(each for each in report.sections if each.title.startswith("Rows near zero"))  # type: ignore[attr-defined]
    return {row[0]: (row[3], row[5]) for row in section.rows}


def test_a_sound_checkpoint_has_the_counts_too(untied: Path) -> None:
    report = ckptcheck.scan(untied)
    (section,) = report.sections
    assert section.title == "Rows near zero (every |element| < 1e-10) and identical (std < 1e-08)"
    assert section.brief[0].endswith(": 0 near zero; 0 identical")
    assert section.columns == ("", "shape", "dtype", "near zero", "share", "identical", "share", "tied")
    assert report.verdict == "clean"
    assert set(counts(report).values()) == {(0, 0)}
    assert report.to_dict()["sections"][0]["rows"][0][0] == EMBEDDING


def test_near_zero_and_identical_rows_are_counted_apart(untied: Path) -> None:
    def change(name: str, value: np.ndarray) -> None:
        if name == EMBEDDING:
            value[3:6] = 0
            value[9] = 0.25
            value[10:12] = 1e-11

    rewrite(untied, change)
    report = ckptcheck.scan(untied)
    found = counts(report)
    assert found[EMBEDDING] == (5, 6)
    assert found.get(HEAD, (0, 0)) == (0, 0)
    section = report.sections[0]
    assert section.rows[0][4] == pytest.approx(5 / int(str(section.rows[0][1]).split()[0]))
    # each kind has its own list of indices, and the statistics stand beside every matrix, as NeMo-RL's script prints them
    assert section.rows[0][8:10] == ("3-5,10-11", "3-5,9-11")
    assert "near zero (15.6%): 3-5,10-11; 6 identical (18.8%): 3-5,9-11; mean_abs=" in section.brief[0]
    for row, name in zip(section.rows, (EMBEDDING, HEAD), strict=True):
        value = next(w for w in (load_file(f).get(name) for f in untied.glob("*.safetensors")) if w is not None)
        exact = value.astype(np.float64)
        std = exact.std(1, ddof=1)
        assert row[10:] == pytest.approx((np.abs(exact).mean(), np.abs(exact).max(), std.min(), std.max()), rel=1e-5)
    loose = counts(ckptcheck.scan(untied, near_zero_threshold=10.0, identical_threshold=10.0))[EMBEDDING]
    assert loose[0] == loose[1] == int(str(section.rows[0][1]).split()[0])


def test_a_matrix_of_zeros_has_only_such_rows(untied: Path) -> None:
    def change(name: str, value: np.ndarray) -> None:
        if name == EMBEDDING:
            value[:] = 0

    rewrite(untied, change)
    report = ckptcheck.scan(untied)
    number = int(str(report.sections[0].rows[0][1]).split()[0])
    assert counts(report)[EMBEDDING] == (number, number)


def test_where_no_values_are_read_nothing_is_counted(untied: Path) -> None:
    assert ckptcheck.scan(untied, headers_only=True).sections == ()
    assert ckptcheck.scan(untied, select=["IDX"]).sections == ()
