"""The engine holds other values than were sent, in a tensor that it stores as sent.

## What it checks
- If the engine's digest of a tensor equals the digest of the sent tensor of that name at one sync, it does so at
  every sync.
- A tensor whose value is that of one other tensor of the same sync holds that one's: it is named. So is one that holds what
  was sent under its own name at an earlier sync.
- One that is a plain multiple or rounding of what was sent, zero, or not finite, counts from the first sync on: the watch sees it
  where the engine is in its process. A power of two and zeros also show in a tensor that the engine casts, and NaN in one that it
  fuses.
- Else the rule leaves out tensors that the engine fuses, shards, casts or packs: their digests never equal.
- HIS001 reports a tensor that kept its old value, and HIS015 an export that was cast: its digests compare with nothing.

## Why it matters
- The engine computes with other values than the trainer.

## How to fix
- Look at the update path of the named tensors. A trial (`ckptcheck refit`) names the cause.

## When it can be wrong
- The rule needs both digests from the same function. A trial records them, and so does `ckptcheck.watch` with an
  engine it can reach.

## Seen in
sgl-project/sglang#14178 (buckets garbled), volcengine/verl#4780, huggingface/trl#5142 (weights loaded into memory that sleep mode
had freed)
"""

from collections.abc import Iterator, Mapping

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import EXPERT, History, drop_rounded, find_swapped, tensors_stored_as_sent
from ckptcheck.runs.history.record import PLAINLY
from ckptcheck.text.formatting import count, list_unless_single


@rule(
    "HIS008",
    "unequal-in-engine",
    severity="error",
    on="history",
    when=lambda history: any(sync.alike and sync.held and sync.sent for sync in history.syncs),
)
def check(history: History) -> Iterator[Problem]:
    changed = [
        (index, sorted(history.lost_on_the_way(index).intersection(*arrived)))
        for index, arrived in sorted(history.arrived.items())
    ]
    for indices, altered in history.follow(changed):
        yield Problem(
            f"{history.label(indices[0])}: {count(len(altered), 'tensor')} came to the engine with other values than were sent"
            f"{list_unless_single(altered)}{history.describe_lasting(indices)}",
            key=altered[0],
            hint="look at the transport: a buffer that is reused while it is read, a bucket that is cut otherwise on one side",
        )
    stale = {pair.index: set(history.stale_tensors(pair)) for pair in history.pairs}
    stored = {
        index: {key for key, value in sync.held.items() if sync.alike and sync.sent.get(key.partition("/")[2]) == value}
        for index, sync in enumerate(history.syncs)
    }
    uncast = set[str]().union(*stored.values())
    references = [history.syncs[index] for index, keys in stored.items() if keys]
    found: list[tuple[int, list[str]]] = []
    others: dict[int, Mapping[str, str]] = {}
    for index, sync in enumerate(history.syncs):
        if not sync.alike or not sync.held:
            continue
        is_cast = any(each.nbytes != sync.nbytes and each.sent.keys() == sync.sent.keys() for each in references)
        comparable = sync.cast.keys() if is_cast else sync.cast.keys() | sync.sent.keys()
        others[index] = {} if is_cast else find_swapped(sync)
        names = {
            place.partition("/")[2]
            for place in history.stored_as_sent - tensors_stored_as_sent(sync) - stale.get(index, set())
            if place in sync.held and place.partition("/")[2] in (comparable if place in uncast else sync.cast)
        }
        names |= {
            place.partition("/")[2]
            for place, text in sync.altered.items()
            if "/" in place and text.startswith(PLAINLY) and place not in stale.get(index, ())
        }
        if not is_cast:
            names |= set(history.find_late(index)) - {place.partition("/")[2] for place in stale.get(index, ())}
        names -= history.lost_on_the_way(index)
        # an engine may move its experts to other places, to balance them
        names |= {name for name, other in others[index].items() if EXPERT.sub("", name) != EXPERT.sub("", other)}
        found.append((index, drop_rounded(sync, names)))
    late: list[list[int]] = []
    for indices, unequal in history.follow(found):
        if history.find_late(indices[0]).get(unequal[0]) == indices[0] - 1:
            run = history.syncs[indices[0]].run
            if any(each[0] <= indices[0] <= each[-1] and history.syncs[each[0]].run == run for each in late):
                continue  # an engine that is one sync late: this tensor did not change before
            late.append(indices)
        yield Problem(
            f"{history.label(indices[0])}: the engine holds other values than the trainer sent in"
            f" {count(len(unequal), 'tensor')}{list_unless_single(unequal)}"
            f"{_describe_origin(history, indices[0], unequal, others[indices[0]])}{history.describe_lasting(indices)}",
            key=unequal[0],
            hint="ckptcheck refit says why; until then restart the engine from a checkpoint",
        )


def _describe_origin(history: History, index: int, names: list[str], others: Mapping[str, str]) -> str:
    """Say whose value, or of which sync, the engine holds in a tensor; "" where the record does not have it."""
    sync = history.syncs[index]
    for name in names:
        if name in others:
            return f"; {name} holds what was sent for {others[name]}"
    late = history.find_late(index)
    for name in names:
        if name in late:
            return f"; {name} holds what was sent at {history.label(late[name])}"
    for name in names:
        for place, text in sync.altered.items():
            if place.partition("/")[2] == name:
                return f"; {name}: {text}"
    return ""
