"""The trainer sent the same delta at two syncs one after the other, with a step in between.

## What it checks
- The record has digests of payloads that do not tell which tensors they change, such as the flushes of a delta.
- A payload of 4 kB or more differs from that of the sync before, if the trainer took a step between them.

## Why it matters
- A delta that is sent again adds the last step a second time, or leaves the new one out: from then on the engine computes with
  weights that the trainer never had.

## How to fix
- Look for the place where the sender takes the weights that it compares with: the copy has to move on at each sync. Send all
  weights once, so that both sides are equal again.

## When it can be wrong
- A step with a learning rate of zero, or whose gradient was dropped: then the payload should be empty.

## Seen in
NovaSky-AI/SkyRL#2142 (a delta engine with stale weights)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History

LEAST_BYTES = 4096
"""A delta without a change still has its table of contents."""


@rule(
    "HIS018",
    "repeated-payload",
    severity="error",
    on="history",
    when=lambda history: any(sync.payload for sync in history.syncs),
)
def check(history: History) -> Iterator[Problem]:
    for pair in history.version_pairs:
        payload = pair.after.payload
        if pair.is_step and payload and payload == pair.before.payload and pair.after.payload_bytes >= LEAST_BYTES:
            yield Problem(
                f"{history.label(pair.index)}: the trainer sent the same delta of {pair.after.payload_bytes:,} bytes as at"
                f" {history.label(pair.before_index)}",
                hint="look for the copy of the weights that the sender compares with: it has to move on at each sync",
            )
