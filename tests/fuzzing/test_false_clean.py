"""What a scan calls clean, transformers loads whole; `make false-clean` is the long run of the same."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import ckptcheck

pytest.importorskip("torch", reason="torch loads what a scan calls clean; make test-all installs it")
pytest.importorskip("transformers")

from tests.fuzzing.false_clean import check_edit


def test_what_is_clean_loads_whole(tmp_path: Path) -> None:
    outcomes = [check_edit(seed, tmp_path / "edited") for seed in range(5000, 5040)]
    assert [(edit, outcome) for edit, outcome in outcomes if outcome.startswith("false clean")] == []
    assert {"noticed", "same"} <= {outcome for _, outcome in outcomes}


@pytest.mark.parametrize(("seed", "why"), [(7, "refuses"), (23, "invents")])
def test_a_scan_that_sees_nothing_is_found_out(
    seed: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ckptcheck, "scan", lambda folder: SimpleNamespace(findings=()))
    assert check_edit(seed, tmp_path / "edited")[1].startswith(f"false clean: transformers {why}")
