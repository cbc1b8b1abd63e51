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
from ckptcheck.phrase import count, few
from ckptcheck.values.place import position
from ckptcheck.values.roles import BOUND


@rule("VAL002", "infinite-value", severity="error", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    bad = [
        stats for stats in ckpt.values.tensors.values() if stats.inf and stats.shape and not BOUND.search(stats.name)
    ]
    for shard in dict.fromkeys(stats.shard for stats in bad):
        here = [stats for stats in bad if stats.shard == shard]
        first = here[0]
        others = (
            f", and {count(len(here) - 1, 'more tensor')}: {few([stats.name for stats in here[1:]])}"
            if len(here) > 1
            else ""
        )
        yield Problem(
            f"{count(first.inf, 'value')} {'is' if first.inf == 1 else 'are'} infinite, "
            f"the first at {position(first, first.first_inf)}{others}",
            file=shard,
            key=first.name,
            hint="convert again from the original dtype; F16 ends at 65,504",
        )
    ckpt.require_values()
