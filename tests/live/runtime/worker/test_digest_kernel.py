"""What hashes rows on a GPU computes what torch's operations do. Without a GPU, Triton's interpreter runs it."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from ckptcheck.live.runtime.engines.digest import digest
from ckptcheck.live.runtime.worker.ckptcheck_worker import digest as digest_module
from ckptcheck.live.runtime.worker.ckptcheck_worker import shard_digest
from tests.paths import ROOT

ROW = 8 * digest_module.WIDTH
SIZES = [5, ROW, 3 * ROW + 5, 40 * ROW, 40 * ROW + 8]


@pytest.mark.parametrize("size", SIZES)
def test_rows_of_any_number_at_once_give_the_same(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    seen: list[int] = []

    def kernel(device: object) -> object:
        by_torch = digest_module._torch_row_hasher(64 * digest_module.WIDTH, device)
        return lambda table: (seen.append(len(table)), by_torch(table))[1]

    monkeypatch.setattr(digest_module, "row_hash_kernel", kernel)
    monkeypatch.setattr(digest_module, "MAX_ALIGNED_WORDS", 16 * digest_module.WIDTH)
    data = np.random.default_rng(0).integers(0, 256, size + 1, np.uint8)
    assert digest_module.digest(torch.from_numpy(data[:size])) == digest(data[:size])
    assert sum(seen) == -(-size // ROW)
    assert max(seen) <= 16
    assert digest_module.digest(torch.from_numpy(data[1:])) == digest(data[1:])  # lies on no word, and is copied
    wide = torch.from_numpy(data[: size // 4 * 4]).view(-1, 4).t()
    assert digest_module.digest(wide) == digest(wide.contiguous().view(-1).numpy())


PROGRAM = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from ckptcheck_worker import digest, digest_kernel, shard_digest, shard_digest_kernel
device = torch.device("cpu")
odd = [digest._multiplier_tensor(half, device) for half in (0, 1)]
factors = [shard_digest._factor_tensors(half, device) for half in (0, 1)]
for number in (1, 3, 16):
    table = torch.randint(-(2**62), 2**62, (number, digest.WIDTH)) * 3 + 1
    same = map(torch.equal, digest_kernel.hash_rows(table, odd), digest._torch_row_hasher(table.numel(), device)(table))
    assert all(same), number
    words = table.view(-1, shard_digest.DIGITS // 2)[: 5 * number]
    assert torch.equal(shard_digest_kernel.sum_blocks(words, factors), shard_digest._sum_blocks_with_torch(words)), number
print("equal")
"""


def test_the_kernels_in_tritons_interpreter() -> None:
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


def test_without_a_gpu_torch_computes_both() -> None:
    torch = pytest.importorskip("torch")
    assert digest_module.row_hash_kernel(torch.device("cpu")) is None
    assert shard_digest.block_sum_kernel(torch.device("cpu")) is None
