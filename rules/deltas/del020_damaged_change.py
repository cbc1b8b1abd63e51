"""A change cannot be decompressed, or its parts do not fit each other.

## What it checks
- Each change is a whole zstd frame.
- A change of overwrite has as many positions and values as it announces; a flush of verl as many values as positions.
- Each file can be read to its end.

## Why it matters
SGLang stops with an error of zstd. A tensor whose change cannot be applied has no value, so the verdict is never clean.

## How to fix
Publish the delta again, or download it again: an upload that broke off looks like this.

## When it can be wrong
A frame with a window of more than 128 MB is refused; no writer known makes one.

## Seen in
ai-dynamo/modelexpress#710 (refusals of torn artifacts), modal-projects/stitch src/stitch/publish.py
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.checkpoint.deltas.outcomes import are_applied
from ckptcheck.compare.delta_problems import report_broken


@rule("DEL020", "damaged-change", severity="error", on="deltas", when=are_applied)
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    return report_broken(
        chains, ("damaged", "unread"), "cannot be decompressed or decoded", "publish or download the delta again"
    )
