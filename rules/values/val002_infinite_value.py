"""A tensor holds infinite values.

## What it checks
No weight holds an Inf. Left out: scalars and bounds of clamps, and attention masks, where it is meant.

## Why it matters
The first product with it is infinite and the first difference NaN. A cast to F16 of values above 65,504 makes it.

## How to fix
Convert again from the original dtype; keep BF16 or F32 where values are large.

## Seen in
huggingface/diffusers#5316, NVIDIA-NeMo/RL#2671
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.values.place import not_finite
from ckptcheck.values.roles import BOUND


@rule("VAL002", "infinite-value", severity="error", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    bad = [
        stats for stats in ckpt.values.tensors.values() if stats.inf and stats.shape and not BOUND.search(stats.name)
    ]
    yield from not_finite(bad, "inf", "infinite", "convert again from the original dtype; F16 ends at 65,504")
    ckpt.require_values()
