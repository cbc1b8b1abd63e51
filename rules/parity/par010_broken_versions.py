"""Weight versions are missing for some tokens, or fall within a sequence.

## What it checks
Where weight versions are recorded, every compared token has one: else a warning. Versions that are numbers do not fall from one
token of a sequence to the next.

## Why it matters
- Filters for stale samples and corrections by lag treat a token without a version as fresh, or drop it. The tokens that lack one
  are often those of the request that an update interrupted.
- An update can only make weights newer. A version that falls comes from a counter that was reset, or from a request that moved to
  an engine that missed a sync. The lag is then negative, and filters for stale samples let the sequence through.

## How to fix
Record the version of every token, also after a pause. Take it from the engine that computed the token, and let a recovered engine
sync before it gets traffic.

## When it can be wrong
- Tokens that no engine computed need no version. Leave them out of the mask; the rule checks only tokens under it.
- A job that never updates in flight may note the version once for each sequence, over its first token only. Write the span over
  all tokens.
- A run that went back to an older checkpoint has older weights with a smaller number, and rightly so. A sequence that lived
  across that belongs to two runs.
- Where each engine counts for itself, the version of a sequence that changes its engine can fall without older weights.
- The rule compares only whole numbers: `v57` and hashes have no order, unless a hash happens to be all digits.
- The rule does not find a version that is there and wrong, such as one that stands still through an update.

## Seen in
vllm-project/vime#45 (the version is None), radixark/miles#1724 (a recovered engine gets traffic before its first sync) and #2244
(the counter jumps from 57 to 1 on failover)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import parse_version
from ckptcheck.text.formatting import count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@rule(
    "PAR010",
    "broken-versions",
    severity="error",
    on="rollouts",
    when=lambda evidence: "version_spans" in evidence.rollouts,
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    yield from _find_missing(evidence)
    yield from _find_falls(evidence)


def _find_missing(evidence: RolloutEvidence) -> Iterator[Problem]:
    import numpy as np

    spans = evidence.rollouts.columns["version_spans"]
    missing = sequences = total = 0
    first = None
    for block in evidence.rollouts.blocks():
        unversioned = np.flatnonzero(block.mask & ~_find_versioned(spans, block.token_slice))
        total, missing = total + int(np.count_nonzero(block.mask)), missing + len(unversioned)
        sequences += len(np.unique(block.owners[unversioned]))
        if first is None and len(unversioned):
            first = f"sequence {block.owners[unversioned[0]]}, token {block.positions[unversioned[0]]}"
    if missing:
        yield Problem(
            f"{missing:,} of {count(total, 'token')}, in {count(sequences, 'sequence')}, have no weight version",
            key=first,
            hint="record the version of every token",
            severity="warning",
        )


def _find_versioned(spans: NDArray[np.int64], tokens: slice) -> NDArray[np.bool_]:
    """Return which of the tokens lie in a span. spans: [begin, end, version], sorted, without overlaps."""
    import numpy as np

    first, last = np.searchsorted(spans[:, 1], tokens.start, "right"), np.searchsorted(spans[:, 0], tokens.stop, "left")
    inside = np.clip(spans[first:last, :2] - tokens.start, 0, tokens.stop - tokens.start)
    steps = np.zeros(tokens.stop - tokens.start + 1, np.int8)
    np.add.at(steps, inside[:, 0], 1)
    np.add.at(steps, inside[:, 1], -1)
    return np.cumsum(steps[:-1], dtype=np.int8) > 0


def _find_falls(evidence: RolloutEvidence) -> Iterator[Problem]:
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
        yield Problem(
            f"the weight version falls in {count(number, 'sequence')}: from {before} to {after} in this one",
            key=f"sequence {sequence}, token {token}",
            hint="find out which engine computed these tokens",
        )
