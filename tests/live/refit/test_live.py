"""A live refit on the real megatron-core and the real vLLM: clean where all is well, and known faults of vLLM are named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import live
import pytest

from tests.conftest import needs_engine

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("vllm-cpu")]


def refit(folder: Path, *arguments: str) -> dict[str, Any]:
    needs_engine("vllm")
    needs_engine("megatron")
    command = [sys.executable, "-m", "ckptcheck", "refit", str(folder), *arguments, "--format", "json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def codes(report: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in report["findings"]}


def test_weights_reach_the_engine_over_gloo_from_two_tensor_parallel_ranks(tmp_path: Path) -> None:
    report = refit(
        live.write("llama", tmp_path / "llama"), "--tp", "2", "--transport", "gloo", "--set", "bucket-mb=0.05"
    )
    assert codes(report) == {"REF011"}  # vLLM keeps its prefix cache unless it is told not to
    assert not report["crashed"]
    (found,) = report["findings"]
    assert "tokens came from the prefix cache, and logprobs differ by" in found["message"]
    assert float(found["message"].partition("differ by ")[2].split()[0]) > 1e-3
    assert report["counts"]["tensors"] > 60
    assert {"REF001", "REF003", "REF004", "REF008", "REF010", "REF012", "REF013"} <= set(report["passed"])


def test_stock_vllm_goes_on_with_the_tied_head_of_before(tmp_path: Path) -> None:
    report = refit(
        live.write("qwen3-tied", tmp_path / "tied"), "--pp", "2", "--set", "engine-mode=stock", "--set", "perturb=0.02"
    )
    assert {"REF005", "REF007", "REF010"} <= codes(report)
    kept = next(finding for finding in report["findings"] if finding["code"] == "REF005")
    assert kept["key"] == "lm_head.cpu_linear.handler"
    assert (
        "lm_head.cpu_linear.handler is still the copy that was packed before the step (it did not move)"
        in kept["message"]
    )
    found = next(finding for finding in report["findings"] if finding["code"] == "REF010")
    assert (
        "although every weight that can be read is equal: the engine computes with something else" in found["message"]
    )
