"""A tensor holds infinite values.

## What it checks
No weight holds an Inf. Tensors that hold it on purpose are left out: scalars, bounds of clamps, attention masks.

## Why it matters
The first product with it is infinite, and the first difference of two such products is NaN. A cast to F16 turns values above
65,504 into Inf.

## How to fix
Convert again from the original dtype. Keep BF16 or F32 for large values.

## When it can be wrong
- A buffer may hold Inf on purpose: a bound of a clamp, an attention mask, a decay table. The rule knows those whose names end
  in `min`, `max`, `mask` or `masked_bias`, and `.bias` with more than two dimensions. A mask with another name is a false alarm.
- `--ignore VAL002`, or a reason under `[ignore]`, silences it.

## Seen in
huggingface/diffusers#5316, NVIDIA-NeMo/RL#2671
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.values.detectors.non_finite import report_non_finite
from ckptcheck.values.detectors.roles import may_be_infinite


@rule("VAL002", "infinite-value", severity="error", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    bad = [stats for stats in ckpt.values.tensors.values() if stats.inf and not may_be_infinite(stats)]
    yield from report_non_finite(
        ckpt, bad, "inf", "infinite", "convert again from the original dtype; F16 ends at 65,504"
    )
    ckpt.require_values()
