"""Some tokens have a weight version and others have none.

## What it checks
Where weight versions are recorded: that every compared token has one.

## Why it matters
Filters for stale samples and corrections by lag take a token without a version for fresh, or drop it. The tokens that lack
one are often those of the request that an update interrupted.

## How to fix
Record the version of every token, also of those after a pause.

## When it can be wrong
Tokens that no engine computed have no version and need none; leave them out of the mask, for only tokens under it are
asked. A job that never updates in flight may note the version once for each sequence, over its first token only:
write the span over all of them. A version that is there and wrong passes.

## Seen in
vllm-project/vime#45 (the version is None), radixark/miles#1724 (a recovered engine gets traffic before its first sync)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.phrase import count


@rule(
    "PAR010",
    "missing-version",
    severity="warning",
    on="rollouts",
    when=lambda judged: judged.sound and "version_spans" in judged.rollouts,
)
def check(judged: Judged) -> Iterator[Problem]:
    import numpy as np

    spans = judged.rollouts.columns["version_spans"]
    edges = np.concatenate([[0], spans[:, :2].ravel()]) if len(spans) else np.zeros(1, np.int64)
    missing = sequences = total = 0
    first = None
    for block in judged.rollouts.blocks():
        at = np.flatnonzero(block.mask)
        inside = np.searchsorted(edges[1:], at + block.where.start, "right") % 2 == 1
        lost = at[~inside]
        total, missing = total + len(at), missing + len(lost)
        sequences += len(np.unique(block.owners[lost]))
        if first is None and len(lost):
            first = f"sequence {block.owners[lost[0]]}, token {block.positions[lost[0]]}"
    if missing:
        text = f"{missing:,} of {count(total, 'token')}, in {count(sequences, 'sequence')}, have no weight version"
        yield Problem(text, key=first, hint="record the version of every token")
