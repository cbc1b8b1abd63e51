"""Finds tensors of an engine that change with the trainer's step: before the sync they have to be what the last sync brought."""

from __future__ import annotations

from collections.abc import Mapping

from ckptcheck.live.refit.trace import Key
from ckptcheck.live.runtime.engines.base import TensorDigests


def find_unsynced_changes(
    held: TensorDigests, now: TensorDigests, reference: TensorDigests, *, slept: bool
) -> Mapping[Key, bool]:
    """Return the tensors that changed since the last sync → whether they already are what the next sync has to bring.

    Those have their numbers from the trainer's memory: the engine kept a tensor that it was lent. Of the others only parameters
    count: a forward pass may change a buffer.

    Args:
        held: what the engine held after the last sync.
        now: what it holds after the trainer's step, before the next sync.
        reference: what the same engine holds, started cold from the stepped weights.
        slept: whether the engine slept in between: what sleep lost is found by comparing before and after it.
    """
    changes: dict[Key, bool] = {}
    for key, entry in now.items():
        before, after = held.get(key), reference.get(key)
        if before is None or entry.opaque or before.opaque or before.digest == entry.digest:
            continue
        follows = after is not None and not after.opaque and after.digest == entry.digest
        if follows or (entry.kind == "parameter" and not slept):
            changes[key] = follows
    return changes
