"""The engine holds other values than were sent, in a tensor that it stores as sent.

## What it checks
- If the engine's digest of a tensor equals the digest of the sent tensor of that name at one sync, it does so at
  every sync.
- The rule leaves out tensors that the engine fuses, shards, casts or packs: their digests never equal.
- HIS001 reports a tensor that kept its old value, and HIS015 an export that was cast: its digests compare with nothing.

## Why it matters
- The engine computes with other values than the trainer.

## How to fix
- Look at the update path of the named tensors. A trial (`ckptcheck refit`) names the cause.

## When it can be wrong
- The rule needs both digests from the same function. A trial records them, and so does `ckptcheck.watch` with an
  engine it can reach.

## Seen in
sgl-project/sglang#14178 (buckets garbled), volcengine/verl#4780
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History, tensors_stored_as_sent
from ckptcheck.text.formatting import count, list_unless_single


@rule(
    "HIS008",
    "unequal-in-engine",
    severity="error",
    on="history",
    when=lambda history: sum(sync.alike and bool(sync.held) for sync in history.syncs) > 1,
)
def check(history: History) -> Iterator[Problem]:
    stale = {pair.index: set(history.stale_tensors(pair)) for pair in history.pairs}
    references = [sync for sync in history.syncs if tensors_stored_as_sent(sync)]
    for index, sync in enumerate(history.syncs):
        is_cast = any(each.nbytes != sync.nbytes and each.sent.keys() == sync.sent.keys() for each in references)
        if not sync.alike or is_cast:
            continue
        names = {
            place.partition("/")[2]
            for place in history.stored_as_sent - tensors_stored_as_sent(sync) - stale.get(index, set())
            if place in sync.held and place.partition("/")[2] in sync.sent
        }
        if names:
            yield Problem(
                f"{history.label(index)}: the engine holds other values than the trainer sent in"
                f" {count(len(names), 'tensor')}{list_unless_single(names)}",
                key=min(names),
                hint="ckptcheck refit says why; until then restart the engine from a checkpoint",
            )
