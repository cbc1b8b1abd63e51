"""The checksum of a delta misses faults that a digest would see.

## What it checks
- adler32 is two sums of 16 bits.
- verl's checksum is an exclusive or over positions and values: it stays equal if two elements change places, and it keeps eight
  bits of the positions. It covers the bytes that the trainer sends, not the engine's tensors afterwards.
- The rule accepts xxh3-128, which finds accidents, and blake3, which finds forgeries too.

## Why it matters
Jobs take an equal checksum for equal weights. In 10,000 bytes, two errors of opposite sign at the right distance pass adler32; any
permutation of values passes verl's.

## How to fix
Choose xxh3-128 or blake3 (`--update-weight-delta-checksum`). With verl, set `verify_every`, and compare the result with a whole
save now and then: `ckptcheck diff BASE+DELTA FULL`.

## When it can be wrong
ModelExpress has only adler32, and verl only its own: the finding then says how much the checksum proves.

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
