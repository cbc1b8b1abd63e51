"""A tensor holds a value that is absurdly large beside its siblings.

## What it checks
The largest magnitude of each matrix is compared with the median over the same matrix in the other layers (and experts):
10,000 times as large is absurd.

## Why it matters
A flipped exponent bit, or bytes of one dtype under the label of another (BF16 read as F16), gives such values. One is
enough to saturate a layer for every token that meets it.

## How to fix
Compare the file's hash with the original's; fetch it again. If the whole matrix is off, check the dtype in its header.

## Seen in
vllm-project/vllm#53537
"""

from collections.abc import Iterator
from statistics import median

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.values.roles import is_matrix, is_scale, template
from ckptcheck.values.stats import TensorStats

FACTOR = 10_000


@rule("VAL006", "absurd-magnitude", severity="error", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    siblings: dict[str, list[TensorStats]] = {}
    for name, stats in ckpt.values.tensors.items():
        if is_matrix(stats) and not is_scale(name):
            siblings.setdefault(template(name), []).append(stats)
    for alike in siblings.values():
        usual = median(stats.absmax for stats in alike)
        for stats in alike if len(alike) >= 3 and usual > 0 else ():
            if stats.absmax > FACTOR * usual:
                yield Problem(
                    f"its largest magnitude is {stats.absmax:.3g}, in its sibling layers it is {usual:.3g}: "
                    "a flipped bit or a wrong dtype",
                    file=stats.shard,
                    key=stats.name,
                    hint="compare the file's hash with the original's",
                )
    ckpt.require_values()
