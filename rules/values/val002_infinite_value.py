"""A tensor holds infinite values.

## What it checks
No weight holds an Inf. Left out: scalars and bounds of clamps, and attention masks, where it is meant.

## Why it matters
The first product with it is infinite and the first difference NaN. A cast to F16 of values above 65,504 makes it.

## How to fix
Convert again from the original dtype; keep BF16 or F32 where values are large.

## When it can be wrong
A buffer may hold Inf on purpose: a bound of a clamp, an attention mask, a decay table. Those that end in `min`, `max`,
`mask` or `masked_bias` are left out, and `.bias` where it has more than two dimensions; a mask under another name is not
known, and raises a false alarm. `--ignore VAL002`, or a reason under `[ignore]`, silences it.

## Seen in
huggingface/diffusers#5316, NVIDIA-NeMo/RL#2671
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.values.place import not_finite
from ckptcheck.values.roles import may_be_infinite


@rule("VAL002", "infinite-value", severity="error", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    bad = [stats for stats in ckpt.values.tensors.values() if stats.inf and not may_be_infinite(stats)]
    yield from not_finite(ckpt, bad, "inf", "infinite", "convert again from the original dtype; F16 ends at 65,504")
    ckpt.require_values()
