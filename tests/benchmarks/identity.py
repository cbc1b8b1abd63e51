"""A manifest, its verification and an identity of a checkpoint in the page cache, against xxh3-128 of its files.

Seconds of a core, whole processes. Then how long it takes to join the sums of shards, and to name many tensors as one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from ckptcheck.compare.identity import TensorIdentity, compute_root
from ckptcheck.values.shard_digest import add_sums, format_sums, is_compiled, sum_shard
from tests.benchmarks.checkpoints import TINY, count_bytes, write_dense
from tests.benchmarks.figures import line
from tests.benchmarks.processes import CKPTCHECK, median, ratio, run_in_turn, temporary_folder
from tests.benchmarks.values import measure_large_folios

HASH = (
    "import pathlib, sys, xxhash\n"
    "block = memoryview(bytearray(1 << 20))\n"
    "for path in sorted(pathlib.Path(sys.argv[1]).glob('*.safetensors')):\n"
    "    state = xxhash.xxh3_128()\n"
    "    with path.open('rb', buffering=0) as file:\n"
    "        while got := file.readinto(block): state.update(block[:got])\n"
    "    print(state.hexdigest())\n"
)
SHARDS = 100_000


def merge_shards(number: int) -> tuple[float, float]:
    """Return the seconds to add up so many shards, a thousand a tensor, and those to make the root of so many tensors."""
    part = sum_shard(np.arange(64, dtype=np.float32))

    def merge() -> None:
        for _ in range(number // 1000):
            total = (0, 0)
            for _ in range(1000):
                total = add_sums(total, part)
            format_sums(total, 256_000)

    tensors = {f"model.layers.{at}.weight": TensorIdentity("BF16", (4096, 4096), f"{at:032x}") for at in range(number)}
    return _seconds(merge), _seconds(lambda: compute_root(tensors))


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    """Measure and print."""
    folder, kept = str(write_dense()), str(temporary_folder() / "manifest.json")
    kernel = "compiled" if is_compiled() else "numpy: see ckptcheck doctor"
    print(f"\nidentity: {count_bytes(write_dense()) / 1e9:.1f} GB of bf16 in the page cache; the kernel is {kernel}")
    made, verified, named, start, hashed, start_of_hash = run_in_turn(
        [*CKPTCHECK, "manifest", folder, "-o", kept],
        [*CKPTCHECK, "verify", folder, kept],
        [*CKPTCHECK, "identity", folder],
        [*CKPTCHECK, "manifest", str(TINY), "-o", str(temporary_folder() / "tiny.json")],
        [sys.executable, "-c", HASH, folder],
        [sys.executable, "-c", HASH, str(TINY)],
    )
    line("share of large folios", f"{measure_large_folios(write_dense()):.2f}", "")
    line("xxh3-128 of the files, seconds", f"{median(hashed).seconds:.2f}", "")
    line("manifest of a tiny checkpoint, seconds", f"{median(start).seconds:.2f}", "")
    line("manifest / xxh3-128 of the files", f"{ratio(made, hashed).seconds:.2f}", "≤ 1.2")
    line("verify / xxh3-128 of the files", f"{ratio(verified, hashed).seconds:.2f}", "≤ 1.2")
    read = (median(made).seconds - median(start).seconds) / (median(hashed).seconds - median(start_of_hash).seconds)
    line("manifest / xxh3-128, each without its start", f"{read:.2f}", "≤ 1.2")
    line("identity / xxh3-128 of the files", f"{ratio(named, hashed).seconds:.2f}", "")
    merging, root = merge_shards(SHARDS)
    line(f"merging {SHARDS:,} shards, seconds", f"{merging:.2f}", "≤ 0.5")
    line(f"root of {SHARDS:,} tensors, seconds", f"{root:.2f}", "≤ 2")


if __name__ == "__main__":
    main()
