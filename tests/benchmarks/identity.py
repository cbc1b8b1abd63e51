"""The identity of a checkpoint in the page cache, against reading its bytes as `cmp` does, and against other ways to name them.

Every figure is a ratio of times measured one after the other in this process, one thread each; the median of the rounds counts.
The reading that the others are compared with is that of `benchmarks.values`: numpy's maximum over the mapped bytes. With an
argument, so many GB: ``python -m tests.benchmarks.identity 2``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xxhash

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.compare.identity import TensorIdentity, compute_root
from ckptcheck.runners.runner import Local
from ckptcheck.values.digest import digest_tensors
from ckptcheck.values.shard_digest import add_sums, format_sums, is_compiled, sum_shard
from ckptcheck.values.tensor_stream import open_streams
from ckptcheck.verbs.identity import identity
from ckptcheck.verbs.manifest import manifest
from tests.benchmarks.figures import line
from tests.benchmarks.values import ceiling, seconds, write

ROUNDS = 5
BLOCK = 1 << 20
"""Bytes of a block that `cmp` and the hashes of files read at a time."""
SHARDS = 1_000_000


def read_as_cmp(folder: Path) -> None:
    """Read every byte into a buffer, and look at it: what `cmp` does with one of its files."""
    buffer = np.empty(BLOCK, np.uint8)
    zeros = np.zeros(BLOCK, np.uint8)
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while got := file.readinto(buffer.data):
                np.array_equal(buffer[:got], zeros[:got])


def hash_files(folder: Path, make: Callable[[], hashlib._Hash | xxhash.xxh3_128]) -> None:
    """Hash every file, as `sha256sum` does."""
    buffer = bytearray(BLOCK)
    for path in sorted(folder.glob("*.safetensors")):
        state = make()
        with path.open("rb", buffering=0) as file:
            while got := file.readinto(buffer):
                state.update(memoryview(buffer)[:got])


def digest_streams(folder: Path) -> None:
    """Digest every tensor with xxh3-128 alone, as manifests did before they had an identity."""
    ckpt = open_checkpoint(str(folder))
    digest_tensors(ckpt.source, open_streams(ckpt), runner=Local(1))


def hash_with_model_signing(folder: Path) -> None:
    """Hash the folder as the package model-signing does before it signs."""
    from model_signing import hashing

    hashing.Config().hash(folder)


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
    return seconds(merge), seconds(lambda: compute_root(tensors))


def main(gigabytes: float = 8) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "ckpt"
        size = write(folder, gigabytes)
        ceiling(folder)
        kernel = "compiled" if is_compiled() else "numpy: see ckptcheck doctor"
        print(
            f"\nidentity: {size / 1e9:.1f} GB of bf16 in the page cache; {ROUNDS} rounds, medians; the kernel is {kernel}"
        )
        ways: dict[str, Callable[[], object]] = {
            "touch": lambda: ceiling(folder),
            "identity": lambda: identity(folder, jobs=1),
            "identity with two threads": lambda: identity(folder, jobs=2),
            "a manifest with its identity": lambda: manifest(folder, jobs=1),
            "a manifest of xxh3-128 alone": lambda: digest_streams(folder),
            "reading as cmp does": lambda: read_as_cmp(folder),
            "xxh3-128 of the files": lambda: hash_files(folder, xxhash.xxh3_128),
            "sha256sum": lambda: hash_files(folder, hashlib.sha256),
        }
        if importlib.util.find_spec("model_signing") is not None:
            ways["model-signing's own hashing"] = lambda: hash_with_model_signing(folder)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(ROUNDS):
            for name, way in ways.items():
                if number and times[name][0] > 5 * times["identity"][0]:
                    continue  # a slow one is timed once
                times[name].append(seconds(way))
        touch = statistics.median(times["touch"])
        for name in list(ways)[1:]:
            share = touch / statistics.median(times[name])
            goal = "≥ 0.7" if name == "identity" and is_compiled() else ""
            line(f"speed of {name} / one thread's touch of the bytes", f"{share:.2f}", goal)
        cost = statistics.median(times["a manifest with its identity"]) / statistics.median(
            times["a manifest of xxh3-128 alone"]
        )
        line("time of a manifest with its identity / without", f"{cost:.2f}", "≤ 2.5")
        line("identity, GB/s", f"{size / 1e9 / statistics.median(times['identity']):.1f}", "")
    merging, root = merge_shards(SHARDS)
    line(f"merging {SHARDS:,} shards, s", f"{merging:.2f}", "≤ 5")
    line(f"root of {SHARDS:,} tensors, s", f"{root:.2f}", "≤ 20")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
