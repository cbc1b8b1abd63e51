"""The weight version falls within a sequence.

## What it checks
Versions that are numbers do not fall from one token of a sequence to the next.

## Why it matters
An update can only make weights newer. A version that falls comes from a counter that was reset, or from a request that moved to
an engine that missed a sync. The lag is then negative, and filters for stale samples let the sequence through.

## How to fix
Take the version from the engine that computed the token, and let a recovered engine sync before it gets traffic.

## When it can be wrong
- A run that went back to an older checkpoint has older weights with a smaller number, and rightly so. A sequence that lived
  across that belongs to two runs.
- Where each engine counts for itself, the version of a sequence that changes its engine can fall without older weights.
- The rule compares only whole numbers: `v57` and hashes have no order, unless a hash happens to be all digits.
- The rule does not find a version that stands still through an update.

## Seen in
radixark/miles#2244 (the counter jumps from 57 to 1 on failover), #1724
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import parse_version
from ckptcheck.text.formatting import count


@rule(
    "PAR011",
    "falling-version",
    severity="error",
    on="rollouts",
    when=lambda evidence: evidence.is_well_formed and "version_spans" in evidence.rollouts,
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    import numpy as np

    rollouts = evidence.rollouts
    spans = rollouts.columns["version_spans"]
    numbers = [parse_version(version) for version in rollouts.metadata.versions]
    owners = np.searchsorted(rollouts.starts, spans[:, 0], "right") - 1
    falls = []
    for span in np.flatnonzero(owners[1:] == owners[:-1]).tolist():
        before, after = (numbers[int(version)] for version in spans[span : span + 2, 2])
        if before is not None and after is not None and after < before:
            falls.append((int(owners[span]), int(spans[span + 1, 0] - rollouts.starts[owners[span]]), before, after))
    if falls:
        sequence, token, before, after = falls[0]
        number = len({fall[0] for fall in falls})
        text = f"the weight version falls in {count(number, 'sequence')}: from {before} to {after} in this one"
        yield Problem(
            text, key=f"sequence {sequence}, token {token}", hint="find out which engine computed these tokens"
        )
