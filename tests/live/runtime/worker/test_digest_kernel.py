"""What sums blocks on a GPU computes what torch's operations do. Without a GPU, Triton's interpreter runs it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ckptcheck.live.runtime.worker.ckptcheck_worker import shard_digest
from tests.paths import ROOT

PROGRAM = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from ckptcheck_worker import shard_digest, shard_digest_kernel
device = torch.device("cpu")
factors = [shard_digest._factor_tensors(half, device) for half in (0, 1)]
for number in (1, 3, 16):
    words = torch.randint(-(2**62), 2**62, (5 * number, shard_digest.DIGITS // 2)) * 3 + 1
    assert torch.equal(shard_digest_kernel.sum_blocks(words, factors), shard_digest._sum_blocks_with_torch(words)), number
print("equal")
"""


def test_the_kernel_in_tritons_interpreter() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ROOT / "ckptcheck/live/runtime/worker")],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.stdout == "equal\n", process.stderr[-2000:]


def test_without_a_gpu_torch_computes_the_sums() -> None:
    torch = pytest.importorskip("torch")
    assert shard_digest.block_sum_kernel(torch.device("cpu")) is None
