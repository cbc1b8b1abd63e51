"""A tensor holds NaN.

## What it checks
- No floating-point tensor holds a NaN, in any dtype that has one (E4M3 and E8M0 included).
- The finding is per file. It gives the number of NaNs in the first such tensor, the place of the first one, and the other
  tensors and layers that hold some.

## Why it matters
One NaN in a weight makes every logit that depends on it NaN. Engines return empty or repeated tokens, and the trainer's loss
is NaN from the first step.

## How to fix
Find where it came in (an overflow in training, a corrupt download, a wrong dtype label), and take an earlier or intact copy.

## When it can be wrong
- A NaN that no computation uses does no harm: the row of a token that never occurs, a buffer that is computed again on loading.
  It still makes sums and norms over all weights NaN, so it breaks a trainer's gradient clipping and checksums.
- `--ignore VAL001`, or a reason under `[ignore]`, silences it.

## Seen in
ICTMCG/Make-Your-Anchor#9, NikoNairre/CT-CIG#3, huggingface/diffusers#5316, safetensors#220
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.values.detectors.non_finite import report_non_finite


@rule("VAL001", "nan-value", severity="error", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    bad = [stats for stats in ckpt.values.tensors.values() if stats.nan]
    yield from report_non_finite(
        ckpt, bad, "nan", "NaN", "take an intact or earlier copy: whatever is computed with it is NaN"
    )
    ckpt.require_values()
