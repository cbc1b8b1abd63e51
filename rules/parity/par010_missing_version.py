"""Some tokens have a weight version and others have none.

## What it checks
Where weight versions are recorded, every compared token has one.

## Why it matters
Filters for stale samples and corrections by lag treat a token without a version as fresh, or drop it. The tokens that lack one
are often those of the request that an update interrupted.

## How to fix
Record the version of every token, also after a pause.

## When it can be wrong
- Tokens that no engine computed need no version. Leave them out of the mask; the rule checks only tokens under it.
- A job that never updates in flight may note the version once for each sequence, over its first token only. Write the span over
  all tokens.
- The rule does not find a version that is there and wrong.

## Seen in
vllm-project/vime#45 (the version is None), radixark/miles#1724 (a recovered engine gets traffic before its first sync)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count


@rule(
    "PAR010",
    "missing-version",
    severity="warning",
    on="rollouts",
    when=lambda evidence: evidence.is_well_formed and "version_spans" in evidence.rollouts,
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    import numpy as np

    spans = evidence.rollouts.columns["version_spans"]
    edges = np.concatenate([[0], spans[:, :2].ravel()]) if len(spans) else np.zeros(1, np.int64)
    missing = sequences = total = 0
    first = None
    for block in evidence.rollouts.blocks():
        indices = np.flatnonzero(block.mask)
        has_version = np.searchsorted(edges[1:], indices + block.token_slice.start, "right") % 2 == 1
        unversioned = indices[~has_version]
        total, missing = total + len(indices), missing + len(unversioned)
        sequences += len(np.unique(block.owners[unversioned]))
        if first is None and len(unversioned):
            first = f"sequence {block.owners[unversioned[0]]}, token {block.positions[unversioned[0]]}"
    if missing:
        text = f"{missing:,} of {count(total, 'token')}, in {count(sequences, 'sequence')}, have no weight version"
        yield Problem(text, key=first, hint="record the version of every token")
