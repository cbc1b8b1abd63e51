"""Live refits of SmolLM2 on GPUs. Skipped, with what is missing, where there is none; ``make gpu`` also says what they cost."""

from __future__ import annotations

import json
from pathlib import Path

import gpu
import numpy as np
import pytest
from conftest import needs

from ckptcheck.engines.digest import digest

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("gpu")]


@pytest.mark.parametrize("cell", gpu.CELLS, ids=str)
def test_the_engine_computes_with_the_trainers_weights(cell: gpu.Cell, request: pytest.FixtureRequest) -> None:
    if why := gpu.lacking(cell):
        pytest.skip(why)
    done = gpu.refit(request.getfixturevalue("smollm2"), cell)
    report = json.loads(done.stdout)
    assert [finding["message"] for finding in report["findings"] if finding["severity"] == "error"] == []
    assert {"REF001", "REF003", "REF004", "REF008", "REF010", "REF012", "REF013"} <= set(report["passed"])
    ignored = [section for section in report["sections"] if section["title"].startswith("switches")]
    assert not ignored


@pytest.mark.parametrize("cell", [gpu.Cell("vllm", "ipc"), gpu.Cell("sglang", "tensor")], ids=str)
def test_weights_that_are_dropped_in_sleep_come_with_the_sync(cell: gpu.Cell, smollm2: Path) -> None:
    if why := gpu.lacking(cell):
        pytest.skip(why)
    report = json.loads(gpu.refit(smollm2, cell, "--sleep-level", "2").stdout)
    assert [finding["message"] for finding in report["findings"] if finding["severity"] == "error"] == []
    assert {"REF001", "REF003", "REF004", "REF018"} <= set(report["passed"])


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_nccl_on_one_gpu_is_refused_before_anything_is_sent(engine: str, smollm2: Path) -> None:
    cell = gpu.Cell(engine, "nccl")
    if why := gpu.lacking(cell):
        pytest.skip(why)
    assert gpu.refit(smollm2, cell).returncode == 2


@pytest.mark.parametrize("ranks", [0, 7])
def test_digests_of_the_device_are_those_of_the_host(ranks: int) -> None:
    needs("torch")
    import torch

    from ckptcheck.host.far.ckptcheck_far import digest as far

    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} sees no GPU")
    values = np.random.default_rng(ranks).integers(0, 256, (4099, 4099 + ranks), np.uint8)
    here = torch.from_numpy(values).cuda()
    assert far.digest(here) == digest(values.reshape(-1))
    assert far.digest(here.t()) == digest(np.ascontiguousarray(values.T).reshape(-1))
    assert far.digests([here[:7], here[9]]) == [digest(values[:7].reshape(-1)), digest(values[9].copy())]
