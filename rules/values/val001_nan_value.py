"""A tensor holds values that are not a number.

## What it checks
No floating-point tensor holds a NaN, in any dtype that has one (E4M3 and E8M0 included). Said are how many there are in the
first such tensor of a file, where the first one is, and which other tensors and layers have some.

## Why it matters
One NaN in a weight makes every logit that depends on it NaN: engines return empty or repeated tokens, and the trainer's loss
is NaN from the first step.

## How to fix
Find the step at which it came in (an overflow in training, a corrupt download, a wrong dtype label) and take an earlier or
intact copy.

## When it can be wrong
A NaN that nothing multiplies with harms nobody: the row of a token that is never used, a buffer that is computed anew on
loading. It still makes sums and norms over all weights NaN, so gradient clipping and checksums of a trainer suffer.
`--ignore VAL001`, or a reason under `[ignore]`, silences it.

## Seen in
ICTMCG/Make-Your-Anchor#9, NikoNairre/CT-CIG#3, huggingface/diffusers#5316, safetensors#220
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.values.place import not_finite


@rule("VAL001", "nan-value", severity="error", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    bad = [stats for stats in ckpt.values.tensors.values() if stats.nan]
    yield from not_finite(
        ckpt, bad, "nan", "NaN", "take an intact or earlier copy: whatever is computed with it is NaN"
    )
    ckpt.require_values()
