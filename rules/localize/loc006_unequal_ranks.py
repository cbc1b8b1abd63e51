"""Ranks of one side that should hold the same output do not.

## What it checks
After each reduction (o_proj, down_proj, the norms) all ranks of a tensor-parallel group hold the same matrix. ckptcheck compares
these matrices within one dump, and takes the other side to tell which rank is wrong. Outputs that only add up to the other side's
are summands that an engine reduces later, and no finding.

## Why it matters
From here on the ranks compute with different hidden states. The sharded matrices after it fit together no more, so that no
comparison of joined matrices says where it began.

## How to fix
Look at this one rank: its copy of a weight that all ranks hold (a norm, a bias, a router), its part in the all-reduce, its device.
`ckptcheck refit` compares what each rank loaded.

## When it can be wrong
In 16-bit dtypes a reduction that gives each rank another rounding can exceed the limit, one part in 128 (bfloat16) or in 1,024
(float16).

## Seen in
the verl/msProbe guide to consistency dumps: it compares one rank with one rank
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.localize.localization import Localization


@rule("LOC006", "unequal-ranks", severity="error", on="localization", when=lambda evidence: evidence.layout is not None)
def check(evidence: Localization) -> Iterator[Problem]:
    assert evidence.layout is not None
    for copy in evidence.layout.unequal_copies:
        yield Problem(
            f"{copy.rank} and {copy.peer} of {copy.side} hold the same output after a reduction, and differ by"
            f" {copy.relative:.2g} times its norm; {copy.peer} is closer to the other side"
            + (f"; {copy.rank}: {copy.relation}" if copy.relation else ""),
            key=copy.point,
            hint=f"look at what {copy.rank} of {copy.side} holds of this module, and at the reduction",
        )
