"""A change is not for a tensor of this size, dtype or shape.

## What it checks
- A change of xor has exactly the bytes of its tensor.
- A change of overwrite has at most a position and a value for each byte of its tensor.
- A flush of verl names the tensor's dtype and shape, and a dense one has all its bytes.

## Why it matters
SGLang applies a change of xor that is too short to the beginning of the tensor, and one that is too long without its end; the
checksum then fails. verl's loader casts a flush of another dtype, and the engine's values are rounded where the trainer's are not.

## How to fix
Take the base and the delta from one run: after a conversion (another dtype, a padded vocabulary, fused projections) the deltas of
before no longer fit.

## When it can be wrong
verl may send a dtype that differs from that of the base on disk, and the engine casts both: name a base in the dtype that is sent.

## Seen in
ai-dynamo/modelexpress modelexpress_rl/train/methods/canonical_delta.py (`canonical tensor … changed byte size`)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.checkpoint.deltas.outcomes import are_applied
from ckptcheck.compare.delta_problems import report_broken


@rule("DEL008", "misfitting-change", severity="error", on="deltas", when=are_applied)
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    return report_broken(chains, ("size",), "cannot take the change", "take the base and the delta from the same run")
