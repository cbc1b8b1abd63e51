"""What a watch costs a sync: bf16 weights of some GB from one torch module into another, bare and watched, in turn.

Two syncs: a copy in memory, which is the fastest there can be, and through a safetensors file in shared memory, as engines take
weights from another process without a GPU. Watched means: tensors are digested on their way, as the schedule chooses them, and
all of them again by the engine, which is one of the user's own; the record is written to a disk, and the rules judge it. The
syncs are those of a trainer whose every weight changes.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import line

ROUNDS = 5


def weights(gigabytes: float) -> dict[str, Any]:
    """Return matrices of 8 MB, named as those of a model."""
    import torch

    number = max(1, round(gigabytes * 1e9 / (1 << 23)))
    return {
        f"model.layers.{layer}.mlp.down_proj.weight": torch.full((1024, 4096), float(layer), dtype=torch.bfloat16)
        for layer in range(number)
    }


class Engine:
    """Holds copies, and digests them as they lie."""

    name, alike = "copy", True

    def __init__(self, held: dict[str, Any]) -> None:
        self.tensors = {name: tensor.clone() for name, tensor in held.items()}
        self.number = 0

    def copied(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """Take weights from memory."""
        for name, tensor in pairs:
            self.tensors[name].copy_(tensor)
        self.number += 1

    def through(self, file: Path, pairs: Iterable[tuple[str, Any]]) -> None:
        """Take weights through a file."""
        from safetensors.torch import load_file, save_file

        save_file(dict(pairs), file)
        self.copied(load_file(file).items())

    def held(self) -> dict[str, str]:
        """Digest all of them."""
        from ckptcheck.watch.tensor_digests import digests

        return {f"0/{name}": value for name, value in digests(self.tensors.items()).items()}

    def version(self) -> str:
        """Return how often it was updated."""
        return str(self.number)


def main(gigabytes: float = 0.25) -> None:
    """Measure and print."""
    from ckptcheck.watch import Watch

    held = weights(gigabytes)
    size = sum(tensor.nbytes for tensor in held.values())
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
        print(f"\nwatch: syncs of {size / 1e9:.1f} GB in {len(held)} tensors of bf16; {ROUNDS} rounds, medians")
        file = Path(shared) / "bucket.safetensors"
        ways: dict[str, Callable[[Engine, Iterable[tuple[str, Any]]], None]] = {
            "a copy in memory": lambda engine, pairs: engine.copied(pairs),
            "a file in shared memory": lambda engine, pairs: engine.through(file, pairs),
        }
        for way, sync in ways.items():
            engine = Engine(held)
            watch = Watch(engine, record=Path(folder) / f"{len(way)}.jsonl", on="raise")
            sent = Watch(record=Path(folder) / f"{len(way)}-sent.jsonl", on="raise")
            bare, watched, half = [], [], []
            for step in range(ROUNDS):
                for tensor in held.values():
                    tensor.add_(1)
                began = time.perf_counter()
                sync(engine, held.items())
                bare.append(time.perf_counter() - began)
                for times, watching in ((watched, watch), (half, sent)):
                    began = time.perf_counter()
                    with watching(step=step) as seen:
                        sync(engine, seen.sent(held.items()))
                    times.append(time.perf_counter() - began)
            middle = statistics.median(bare)
            line(f"{way}: GB/s", f"{size / 1e9 / middle:.1f}", "")
            line(f"{way}: watched / bare, both sides", f"{statistics.median(map(_ratio, watched, bare)):.2f}", "")
            line(f"{way}: watched / bare, only what is sent", f"{statistics.median(map(_ratio, half, bare)):.2f}", "")


def _ratio(one: float, other: float) -> float:
    return one / other


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.25)
