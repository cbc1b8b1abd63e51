"""What a trial says of an engine that computes otherwise with the right weights, in every cold load too, on the real vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import live
import pytest

from ckptcheck.linter.runner import run_rules
from ckptcheck.live.refit.live_trial import TrialEngine, TrialSource, TrialTrainer, run_live_trial
from ckptcheck.live.refit.trial_state import TrialSettings
from ckptcheck.live.runtime.engines import registry
from tests.conftest import needs_engine
from tests.doubles.faults import faulty_engines
from tests.factories.live_bench import RULES, messages_by_code

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("vllm-cpu")]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    needs_engine("megatron")
    needs_engine("vllm")
    with faulty_engines():
        yield live.write("qwen3", tmp_path_factory.mktemp("source") / "qwen3")


@pytest.mark.parametrize(
    ("fault", "module"),
    [
        pytest.param("", "", id="sound", marks=pytest.mark.matrix),
        pytest.param("head", "lm_head", id="head"),
        pytest.param("rope", "model.layers.1.self_attn.core", id="rope", marks=pytest.mark.matrix),
    ],
)
def test_the_side_and_the_module_are_named_in_bf16(
    source: Path, fault: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_engine = registry.start_engine

    def start(*arguments: Any, **named: Any) -> Any:
        engine: Any = start_engine(*arguments, **named)
        if fault:
            engine._worker.call("plant", layer=1, what=fault)
        return engine

    monkeypatch.setattr(registry, "start_engine", start)
    settings = TrialSettings(bucket_bytes=1 << 18, second_bucket_bytes=1 << 16)
    sides = TrialEngine("vllm"), TrialTrainer("megatron")
    with run_live_trial(TrialSource(str(source)), settings, *sides, dtype="bfloat16") as trace:
        report = run_rules(trace, RULES)
    assert (trace.failed_phases, trace.module_errors_skipped) == ({}, "")
    found = messages_by_code(report)
    if not fault:
        assert "REF043" in report.passed
        assert found.keys() <= {"REF011"}
        return
    assert f"the engine (vllm) computes {module} with a relative error of" in found["REF043"]
    assert not {"REF003", "REF009", "REF010", "REF037"} & found.keys()
