"""The positions of a change are not in ascending order.

## What it checks
A change of overwrite lists its positions from the first to the last. Flushes of verl are left out: they join what the ranks sent.

## Why it matters
Every writer of this format takes the positions from left to right, so another order means other bytes: a count that is off by
one reads values as positions.

## How to fix
Publish the delta again, and compare how the writer and the reader lay out count, positions and values.

## When it can be wrong
A writer of your own need not sort: the result is the same, if the checksum is (DEL012).

## Seen in
THUDM/slime slime/utils/disk_delta.py (`overwrite_encode`: `flatnonzero`)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.checkpoint.deltas.outcomes import are_applied, select_outcomes
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.text.formatting import count


@rule("DEL011", "unordered-index", severity="warning", on="deltas", when=are_applied)
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    for delta, found in select_outcomes(chains, lambda outcome: outcome.effect and outcome.effect.unordered):
        names = [name for name in found if delta.changes[name][0].encoding == "overwrite"]
        if names:
            yield Problem(
                f"{delta.name}: the positions of {count(len(names), 'tensor')} are not in ascending order: {group_names(names)}",
                key=names[0],
                names=tuple(names),
                hint="compare how writer and reader lay out count, positions and values",
            )
