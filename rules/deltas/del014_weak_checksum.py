"""The checksum of a delta misses faults that a digest would see.

## What it checks
- adler32 is two sums of 16 bits.
- verl's checksum is an exclusive or over positions and values: an element that is swapped with another one leaves it equal, and
  of the positions it keeps eight bits. It covers what was sent, and not what the engine has afterwards.
- xxh3-128 finds accidents, and blake3 forgeries too: about these nothing is said.

## Why it matters
An equal checksum is taken for equal weights. In 10,000 bytes, two errors of opposite sign at the right distance pass adler32; any
permutation of values passes verl's.

## How to fix
Choose xxh3-128 or blake3 (`--update-weight-delta-checksum`). With verl, set `verify_every`, and compare the result with a whole
save now and then: `ckptcheck diff BASE+DELTA FULL`.

## When it can be wrong
ModelExpress knows no other checksum than adler32, and verl none but its own: then it says what to expect of them.

## Seen in
verl-project/verl verl/checkpoint_engine/delta_sync/encode.py (`checksum`), ai-dynamo/modelexpress modelexpress_rl/utils.py
(`adler32_checksum`)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.checkpoint.deltas.checksums import WEAKNESSES


@rule("DEL014", "weak-checksum", severity="info", on="deltas")
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    for chain in chains:
        algorithms = {delta.checksum_format or "xor": delta for delta in chain.deltas if delta.is_known}
        for algorithm, delta in algorithms.items():
            if (weakness := WEAKNESSES.get(algorithm)) is not None:
                yield Problem(
                    f"{delta.name} is checked by {weakness}",
                    hint="compare the result with a whole save: ckptcheck diff BASE+DELTA FULL",
                )
