"""How fast tensors are digested on a GPU, beside its memory: bytes that a copy on the device reads and writes a second.

Runs in any Python that has torch; its own folder is all that it needs.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

FAR = Path(__file__).parents[2] / "ckptcheck/live/runtime/worker"
ROUNDS = 10
SHAPES = {"matrices of 134 MB": (8192, 8192), "experts of 3 MB": (768, 2048)}
BYTES = 4 << 30


def main() -> None:
    """Measure and print."""
    try:
        import torch
    except ImportError:
        print("\ndigests on a GPU: left out, this Python has no torch")
        return
    if not torch.cuda.is_available():
        print(f"\ndigests on a GPU: left out, torch {torch.__version__} sees none")
        return
    sys.path.insert(0, str(FAR))
    from ckptcheck_worker import shard_digest as digest

    device = torch.device("cuda", 0)

    def seconds(work: Callable[[], object]) -> float:
        work()  # compiles, and fills what is kept
        times = []
        for _ in range(ROUNDS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        return statistics.median(times)

    total = min(BYTES, torch.cuda.mem_get_info()[0] // 4)
    how = "one pass, by Triton" if digest.block_sum_kernel(device) else "torch's own operations"
    print(
        f"\ndigests of bfloat16 on {torch.cuda.get_device_name(0)} ({how}), {total / 1e9:.1f} GB, medians of {ROUNDS}"
    )
    one = torch.randn(total // 4, device=device)
    copied = 2 * one.nbytes / seconds(partial(torch.empty_like(one).copy_, one)) / 1e9
    print(f"  a copy on the device reads and writes {copied:,.0f} GB/s")
    flat = one.view(torch.bfloat16)
    for name, shape in SHAPES.items():
        size = shape[0] * shape[1]
        held = [flat[at : at + size].view(shape) for at in range(0, flat.numel() - size + 1, size)]
        rate = sum(tensor.nbytes for tensor in held) / seconds(partial(digest.digests, held)) / 1e9
        print(f"  {name}: {rate:,.0f} GB/s, {rate / copied:.2f} of it (wanted: 0.5)")


if __name__ == "__main__":
    main()
