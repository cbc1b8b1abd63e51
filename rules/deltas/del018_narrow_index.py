"""A tensor is too large for the positions of its delta.

## What it checks
A position of overwrite has 32 bits and counts bytes, so it reaches 4,294,967,296 of them; an index of verl is signed and counts
elements, so it reaches 2,147,483,648.

## Why it matters
Beyond that the writer of overwrite wraps around without a word: changes of the end of the tensor are written to its beginning,
and the checksum fails. verl stops.

## How to fix
Use the encoding xor, which has no positions, or send tensors of that size whole.

## When it can be wrong
Never seen: a position of 32 bits cannot name these bytes.

## Seen in
THUDM/slime slime/utils/disk_delta.py (`astype("<u4")`), verl-project/verl verl/checkpoint_engine/delta_checkpoint_engine.py
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.checkpoint.deltas.outcomes import are_applied
from ckptcheck.compare.delta_problems import report_broken


@rule("DEL018", "narrow-index", severity="error", on="deltas", when=are_applied)
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    return report_broken(chains, ("width",), "is too large", "use the encoding xor")
