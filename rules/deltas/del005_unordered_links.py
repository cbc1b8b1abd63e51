"""The deltas are all there, and in another order than their versions.

## What it checks
Sorted by base_version and version, the deltas make one chain; as they are named, or as their folders sort, they do not.

## Why it matters
SGLang refuses a delta that is not for the version that it has. Applied in this order, overwritten values of an older version
replace newer ones.

## How to fix
Name the deltas in the order that the finding gives.

## When it can be wrong
Never seen: the order follows from the versions in the indexes alone.

## Seen in
THUDM/slime docker/patch/latest/sglang-pull_weights.patch (`out-of-order delta`)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.checkpoint.deltas.outcomes import have_several

MOST = 8
"""Deltas that a message names."""


@rule("DEL005", "unordered-links", severity="error", on="deltas", when=have_several)
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    for chain in chains:
        if chain.sorted_deltas is not None and chain.sorted_deltas != chain.deltas:
            order = ", ".join(delta.name for delta in chain.sorted_deltas[:MOST])
            more = f" and {len(chain.deltas) - MOST:,} more" if len(chain.deltas) > MOST else ""
            yield Problem(
                f"the deltas are not in the order of their versions, which is {order}{more}",
                hint="name them in this order",
            )
