"""The engine holds something else than was sent, in a tensor that it holds as it is sent.

## What it checks
A tensor of the same name whose digest in the engine was that of what was sent at some sync has it at every sync. Tensors that the
engine fuses, shards, casts or packs never have; they are left out. What is as it was before is HIS001.

## Why it matters
The engine computes with other numbers than the trainer has.

## How to fix
Look at the update path of the named tensors; a trial (`ckptcheck refit`) names the cause.

## When it can be wrong
It needs both digests by the same function, as a trial and `ckptcheck.watch` with an engine in reach record them.

## Seen in
sgl-project/sglang#14178 (buckets garbled), volcengine/verl#4780
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.history.history import History, as_sent
from ckptcheck.phrase import count, few


@rule(
    "HIS008",
    "unequal-in-engine",
    severity="error",
    on="history",
    when=lambda history: sum(sync.alike and bool(sync.held) for sync in history.syncs) > 1,
)
def check(history: History) -> Iterator[Problem]:
    stale = {turn.index: set(history.stale(turn)) for turn in history.turns}
    for index, sync in enumerate(history.syncs):
        if not sync.alike:
            continue
        names = {
            key.partition("/")[2]
            for key in history.plain - as_sent(sync) - stale.get(index, set())
            if key in sync.held and key.partition("/")[2] in sync.sent
        }
        if names:
            where = f"{count(len(names), 'tensor')}: {few(names)}"
            yield Problem(
                f"{history.name(index)}: the engine holds other numbers than were sent in {where}",
                key=min(names),
                hint="ckptcheck refit says why; until then restart the engine from a checkpoint",
            )
