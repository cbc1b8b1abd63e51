"""Live refits of weights that are packed on their way, on real engines; and the ignore list that both sides read otherwise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import live
import pytest

from tests.conftest import needs_engine

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("sglang-cpu")]


def refit(folder: Path, engine: str, *arguments: str) -> dict[str, Any]:
    needs_engine(engine)
    needs_engine("megatron")  # has transformers
    command = [sys.executable, "-m", "ckptcheck", "refit", str(folder), "--engine", engine, "--trainer", "transformers"]
    command += [*([] if "--steps" in arguments else ["--set", "perturb=0.02"]), *arguments, "--format", "json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def codes(report: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in report["findings"]}


def test_slimes_router_is_named_with_the_entry_that_mends_it(tmp_path: Path) -> None:
    report = refit(
        live.write("qwen3-wide", tmp_path / "moe"), "sglang", "--quantize", "w4a16", "--set", "trainer-quantizer=slime",
        "--set", r"quantize-ignore=lm_head,model.embed_tokens,re:.*mlp\.gate$", "--steps", "0",
    )  # fmt: skip
    assert {"REF001", "REF009", "REF010", "REF019"} <= codes(report)
    found = next(finding for finding in report["findings"] if finding["code"] == "REF019")
    assert found["message"].startswith(
        "2 modules are packed by slime and built plain by sglang: model.layers.0.mlp.gate"
    )
    assert found["hint"].startswith(r'write "re:.*mlp\.gate(\.weight)?$" in place of "re:.*mlp\.gate$"')
    unwritten = next(finding for finding in report["findings"] if finding["code"] == "REF001")
    assert "model.layers.0.mlp.gate.weight" in unwritten["message"]
    assert "the update call reported success" in unwritten["message"]


@pytest.mark.xdist_group("vllm-cpu")
def test_int8_of_vllm_is_nan_after_a_reload(tmp_path: Path) -> None:
    report = refit(
        live.write("llama", tmp_path / "llama"), "vllm", "--quantize", "w8a8", "--dtype", "bfloat16", "--steps", "0"
    )
    assert {"REF010", "REF033"} <= codes(report)
    known = next(finding for finding in report["findings"] if finding["code"] == "REF033")
    assert "logprobs of W8A8 are NaN after reload_weights" in known["message"]
