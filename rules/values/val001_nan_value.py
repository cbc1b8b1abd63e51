"""A tensor holds values that are not a number.

## What it checks
No floating-point tensor holds a NaN, in any dtype that has one (E4M3 and E8M0 included).

## Why it matters
One NaN in a weight makes every logit that depends on it NaN: engines return empty or repeated tokens, and the trainer's loss
is NaN from the first step.

## How to fix
Find the step at which it came in (an overflow in training, a corrupt download, a wrong dtype label) and take an earlier or
intact copy.

## Seen in
ICTMCG/Make-Your-Anchor#9, NikoNairre/CT-CIG#3, huggingface/diffusers#5316, safetensors#220
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.values.place import not_finite


@rule("VAL001", "nan-value", severity="error", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    bad = [stats for stats in ckpt.values.tensors.values() if stats.nan]
    yield from not_finite(bad, "nan", "NaN", "take an intact or earlier copy: whatever is computed with it is NaN")
    ckpt.require_values()
