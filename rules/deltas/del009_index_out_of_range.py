"""A position of a delta lies outside its tensor.

## What it checks
Every position of overwrite is below the bytes of its tensor; every index of verl is from 0 up to its elements.

## Why it matters
numpy and torch raise an IndexError on the CPU. On a GPU `index_copy_` stops the engine with an assertion, after which its process
is lost. A negative index is one that overflowed.

## How to fix
Look for the shape that the sender computed the positions with: a padded vocabulary, a shard's own coordinates in place of the
whole tensor's, or a counter of 32 bits.

## When it can be wrong
Never seen: no tensor has such an element.

## Seen in
verl-project/verl verl/checkpoint_engine/delta_checkpoint_engine.py (`exceeds the int32 position encoding`)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.checkpoint.deltas.outcomes import are_applied
from ckptcheck.compare.delta_problems import report_broken


@rule("DEL009", "index-out-of-range", severity="error", on="deltas", when=are_applied)
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    return report_broken(
        chains, ("index",), "cannot take the change", "look for the shape that the sender computes positions with"
    )
