"""Live refits of SmolLM2 on GPUs. Skipped, with what is missing, where there is none; ``make gpu`` also says what they cost."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ckptcheck.live.runtime.engines.digest import digest
from ckptcheck.live.runtime.servers.reference import ReferenceServer
from tests import gpu
from tests.conftest import needs

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("gpu")]


SLACK = 64
"""MiB by which drivers count otherwise from one time to the next."""
PATIENCE = 30.0
"""Seconds in which a driver has to have cleared up after a process that has ended."""


@contextmanager
def nothing_is_left() -> Iterator[None]:
    """See that the GPUs' memory is free again afterwards; meant for what runs in processes of its own."""
    before = gpu.held()
    yield
    end = time.monotonic() + PATIENCE
    while (left := gpu.held() - before) > SLACK:
        assert time.monotonic() < end, f"{left} MiB are still taken"


@pytest.mark.parametrize("cell", gpu.CELLS, ids=str)
def test_the_engine_computes_with_the_trainers_weights(cell: gpu.Cell, request: pytest.FixtureRequest) -> None:
    if why := gpu.lacking(cell):
        pytest.skip(why)
    source = request.getfixturevalue("smollm2")
    with nothing_is_left():
        done = gpu.refit(source, cell)
    report = json.loads(done.stdout)
    assert [finding["message"] for finding in report["findings"] if finding["severity"] == "error"] == []
    assert gpu.overdue(cell, report) == set()
    ignored = [section for section in report["sections"] if section["title"].startswith("switches")]
    assert not ignored


@pytest.mark.parametrize("cell", [gpu.Cell("vllm", "ipc"), gpu.Cell("sglang", "tensor")], ids=str)
def test_weights_that_are_dropped_in_sleep_come_with_the_sync(cell: gpu.Cell, smollm2: Path) -> None:
    if why := gpu.lacking(cell):
        pytest.skip(why)
    report = json.loads(gpu.refit(smollm2, cell, "--set", "sleep-level=2").stdout)
    assert [finding["message"] for finding in report["findings"] if finding["severity"] == "error"] == []
    assert {"REF001", "REF003", "REF004", "REF018"} <= set(report["passed"])


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_nccl_on_one_gpu_is_refused_before_anything_is_sent(engine: str, smollm2: Path) -> None:
    cell = gpu.Cell(engine, "nccl")
    if why := gpu.lacking(cell):
        pytest.skip(why)
    with nothing_is_left():
        done = gpu.refit(smollm2, cell, stderr=subprocess.PIPE)
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (2, "incomplete")
    assert f"NCCL refuses two ranks on one GPU, and megatron and {engine} share " in done.stderr


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_server_on_a_gpu_serves_what_it_should(engine: str, smollm2: Path) -> None:
    """The reference is started beside it, on the same GPU."""
    if why := gpu.lacking(gpu.Cell(engine, "reload")):
        pytest.skip(why)
    python = Path(str(gpu.python(engine)))
    with nothing_is_left(), ReferenceServer(engine, smollm2, dtype="bfloat16", device="cuda", python=python) as served:
        done = gpu.attach(smollm2, engine, served.client.url)
    report = json.loads(done.stdout)
    assert (done.returncode, report["findings"]) == (0, [])
    assert {"REF028", "REF030", "REF031"} <= set(report["passed"])


@pytest.mark.parametrize("ranks", [0, 7])
def test_digests_of_the_device_are_those_of_the_host(ranks: int) -> None:
    needs("torch")
    import torch

    from ckptcheck.live.runtime.worker.ckptcheck_worker import shard_digest as far

    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} sees no GPU")
    values = np.random.default_rng(ranks).integers(0, 256, (4099, 4099 + ranks), np.uint8)
    here = torch.from_numpy(values).cuda()
    assert far.digest(here) == digest(values.reshape(-1))
    assert far.digest(here.t()) == digest(np.ascontiguousarray(values.T).reshape(-1))
    assert far.digests([here[:7], here[9]]) == [digest(values[:7].reshape(-1)), digest(values[9].copy())]
