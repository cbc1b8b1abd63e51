"""What a scan calls clean of tokenizers, adapters and quantized checkpoints, their libraries load whole."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch loads what a scan calls clean; make test-all installs it")
pytest.importorskip("transformers")
pytest.importorskip("peft")
pytest.importorskip("compressed_tensors")

from tests.fuzzing import false_clean_parts
from tests.fuzzing.false_clean_parts import KINDS, Fuzzer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=sorted(KINDS))
def fuzzer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Fuzzer:
    return Fuzzer(KINDS[request.param], tmp_path_factory.mktemp(request.param))


def test_sound_ones_are_clean(fuzzer: Fuzzer) -> None:
    assert len(fuzzer.sound) >= 4
    assert not any(severity == "error" for findings in fuzzer.baseline.values() for _, severity in findings)


def test_what_is_clean_loads_whole(fuzzer: Fuzzer) -> None:
    outcomes = [fuzzer.check_edit(seed) for seed in range(5000, 5012)]
    assert [(edit, outcome) for edit, outcome in outcomes if outcome.startswith("false clean")] == []
    assert {"noticed"} <= {outcome for _, outcome in outcomes}


def test_a_scan_that_sees_nothing_is_found_out(fuzzer: Fuzzer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(false_clean_parts, "scan", lambda folder: set())
    assert any(fuzzer.check_edit(seed)[1].startswith("false clean") for seed in range(5000, 5012))
