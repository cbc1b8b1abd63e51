"""Copies of experts in the real SGLang, which moves them between two syncs. vLLM balances experts on GPUs only."""

from __future__ import annotations

from pathlib import Path

import live
import pytest

import ckptcheck
from ckptcheck.live.runtime.engines.sglang import SglangEngine
from tests.conftest import needs_engine
from tests.factories.live_bench import messages_by_code
from tests.paths import DOUBLES

pytestmark = [pytest.mark.engine, pytest.mark.matrix, pytest.mark.xdist_group("sglang-cpu")]


@pytest.mark.parametrize("is_faulty", [False, True], ids=["sound", "written to the slots of the start"])
def test_every_copy_follows_the_map(tmp_path: Path, is_faulty: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_engine("sglang")
    needs_engine("megatron")
    if is_faulty:
        monkeypatch.setattr(SglangEngine, "module", DOUBLES / "faulty_sglang_experts.py")
    source = live.write("qwen3-moe", tmp_path / "source")
    report = ckptcheck.refit(str(source), engine="sglang", switch=["redundant_experts=2"], bucket_mb=0.1)
    found = messages_by_code(report)
    if not is_faulty:
        assert report.verdict == "clean", found
        assert "24 slots for experts hold the expert of the engine's map, 24 of them moved" in str(report.sections)
        return
    assert {"REF003", "REF009", "REF054"} <= found.keys()
    assert found["REF054"].startswith(
        "after sync 2, 24 of 24 slots for experts are wrong: slot 0 of model.layers.0.mlp"
    )
