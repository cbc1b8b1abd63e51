"""``parity localize --engine TRAINER``: the other trainer stands in the place of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import live
import pytest

import ckptcheck
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.engines.activations import Activations
from ckptcheck.live.runtime.trainers import registry
from ckptcheck.live.runtime.trainers.base import TrainerInfo
from ckptcheck.live.runtime.trainers.layout import ParallelLayout
from tests.factories.localize_cases import build_localization


class CapturingTrainer:
    """A trainer that captures the made-up outputs of a case."""

    def __init__(self, name: str, layout: ParallelLayout, activations: Activations) -> None:
        self.info = TrainerInfo(name, "1", "float32", str(layout), "FakeForCausalLM")
        self._activations = activations

    def capture_activations(self, tokens: Sequence[int], folder: Path) -> Activations:
        return self._activations

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str, str]]:
    """Return the trainers that are started: name, layout, checkpoint."""
    starts: list[tuple[str, str, str]] = []
    case = build_localization(
        {"title": "", "do": [{"point": "model.layers.1.mlp.down_proj", "how": "factor", "by": 2.0}]}
    )

    def start(name: str, ckpt: Any, _: Any, layout: ParallelLayout, *__: Any, **___: Any) -> CapturingTrainer:
        starts.append((name, str(layout), Path(ckpt.target).name))
        return CapturingTrainer(name, layout, case.other if name == "transformers" else case.reference)

    monkeypatch.setattr(registry, "start_trainer", start)
    for name in ("tiny", "other"):
        live.write("llama", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return starts


def test_megatron_is_compared_with_transformers_directly(started: list[tuple[str, str, str]]) -> None:
    report = ckptcheck.localize("tiny", trainer="megatron", engine="transformers", tp=2)
    assert started == [("megatron", "TP2", "tiny"), ("transformers", "", "tiny")]
    assert "megatron TP2 ↔ transformers" in report.subject
    assert any("layers.1.mlp.down_proj" in finding.message + str(finding.key) for finding in report.findings)


def test_the_layout_is_megatrons_on_either_side(started: list[tuple[str, str, str]]) -> None:
    ckptcheck.localize("tiny", trainer="transformers", engine="megatron", engine_source="other", pp=2)
    assert started == [("transformers", "", "tiny"), ("megatron", "PP2", "other")]


def test_a_trainer_beside_itself_and_options_of_engines_are_refused(started: list[tuple[str, str, str]]) -> None:
    with pytest.raises(CkptcheckError, match="both sides are transformers"):
        ckptcheck.localize("tiny", engine="transformers")
    with pytest.raises(CkptcheckError, match="has no effect with --engine megatron: two trainers are run"):
        ckptcheck.localize("tiny", engine="megatron", engine_tp=2)
    assert started == []
