"""The weight version falls within a sequence.

## What it checks
That versions that are numbers do not fall from one token of a sequence to the next.

## Why it matters
An update can only make weights newer. A version that falls is a counter that was reset, or a request that moved to an
engine that missed a sync. Lag is then negative, and filters for stale samples let it through.

## How to fix
Take the version from the engine that computed the token, and let a recovered engine sync before it gets traffic.

## When it can be wrong
A run that went back to an older checkpoint has older weights with a smaller number, rightly so; a sequence that lived
across that belongs to two runs. Engines with counters of their own make a sequence that changes its engine fall
without older weights. Only whole numbers are compared: `v57` and hashes have no order, unless a hash happens to be
all digits. A version that stands still through an update is not seen here.

## Seen in
radixark/miles#2244 (the counter jumps from 57 to 1 on failover), #1724
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.parity.judging import number_of
from ckptcheck.phrase import count


@rule(
    "PAR011",
    "falling-version",
    severity="error",
    on="rollouts",
    when=lambda judged: judged.sound and "version_spans" in judged.rollouts,
)
def check(judged: Judged) -> Iterator[Problem]:
    import numpy as np

    rollouts = judged.rollouts
    spans = rollouts.columns["version_spans"]
    numbers = [number_of(version) for version in rollouts.metadata.versions]
    owners = np.searchsorted(rollouts.starts, spans[:, 0], "right") - 1
    falls = []
    for at in np.flatnonzero(owners[1:] == owners[:-1]).tolist():
        before, after = (numbers[int(spans[row, 2])] for row in (at, at + 1))
        if before is not None and after is not None and after < before:
            falls.append((int(owners[at]), int(spans[at + 1, 0] - rollouts.starts[owners[at]]), before, after))
    if falls:
        sequence, token, before, after = falls[0]
        number = len({fall[0] for fall in falls})
        text = f"the weight version falls in {count(number, 'sequence')}: from {before} to {after} in this one"
        yield Problem(text, key=f"sequence {sequence}, token {token}", hint="see which engine computed these tokens")
