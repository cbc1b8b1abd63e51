"""What a scan calls clean, transformers loads whole; `make false-clean` is the long run of the same."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import ckptcheck

pytest.importorskip("torch", reason="torch loads what a scan calls clean; make test-all installs it")
pytest.importorskip("transformers")

from tests.fuzzing.false_clean import check_edit

FOUND = (39, 88, 110, 232, 315, 725, 1315, 1690)
"""Seeds whose edits a scan called clean, and does no more."""


@pytest.mark.parametrize("seed", FOUND)
def test_an_edit_that_was_called_clean_is_noticed(seed: int, tmp_path: Path) -> None:
    assert check_edit(seed, tmp_path / "edited")[1] == "noticed"


def test_what_is_clean_loads_whole(tmp_path: Path) -> None:
    outcomes = [check_edit(seed, tmp_path / "edited") for seed in range(5000, 5040)]
    assert [(edit, outcome) for edit, outcome in outcomes if outcome.startswith("false clean")] == []
    assert {"noticed", "same"} <= {outcome for _, outcome in outcomes}


@pytest.mark.parametrize(("seed", "why"), [(39, "refuses"), (725, "invents")])
def test_a_scan_that_sees_nothing_is_found_out(
    seed: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ckptcheck, "scan", lambda folder: SimpleNamespace(findings=()))
    assert check_edit(seed, tmp_path / "edited")[1].startswith(f"false clean: transformers {why}")
