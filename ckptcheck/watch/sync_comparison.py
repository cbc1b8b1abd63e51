"""Compares the sides of one sync: the engine before it with the engine after the last, what is sent with what is trained, and what
is held with what was sent. Only what differs comes into the record.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ckptcheck.runs.history.record import NO_BYTES, SyncRecord
from ckptcheck.watch.engine_side import is_on_cpu, read_engine, read_parts
from ckptcheck.watch.ranges import SCALED, Range, Ranges, describe_range, find_odd
from ckptcheck.watch.tensor_difference import describe_difference
from ckptcheck.watch.tensor_digests import SyncDigests, digest_tensor
from ckptcheck.watch.trainer_side import MOST, MOST_BYTES, SyncOfTrainer, may_describe

if TYPE_CHECKING:
    from ckptcheck.watch.engine_layout import EnginePart
    from ckptcheck.watch.engine_side import WatchedEngine
    from ckptcheck.watch.watch_state import WatchState

BEFORE, FIRST, TURNS = 16 << 20, 16, 3
"""Bytes of the engine that are read before a sync at most, and of what is sent that are kept until it ends; the first syncs, before
which all of a small engine is read; and the least number of syncs in which its tensors take turns from then on: a third read of all
costs half as much again as the other two."""


class SyncComparison:
    """What one sync compares. trainer: the trainer's parameters; None where they are not known."""

    def __init__(self, watch: WatchState) -> None:
        self._watch = watch
        self.trainer: SyncOfTrainer | None = None
        self._before = SyncDigests()
        self._expected, watch.engine_before = watch.engine_before, {}
        self._kept: dict[str, Any] = {}
        """Copies of what was sent: by the names of `WatchState.suspects`, and of a small model at the first syncs."""
        self._kept_bytes = 0
        self._ranges = Ranges()

    def look_before(self) -> None:
        """Digest what the engine holds, when the first tensor of the sync is sent and before it arrives."""
        watch = self._watch
        if watch.engine is not None and self._expected and (watch.may_look_before or is_on_cpu(watch.engine)):
            watch.attempt("read the engine before the sync", self._read_before, once=True)

    def _read_before(self) -> None:
        watch = self._watch
        assert watch.engine is not None
        turns = max(TURNS if watch.number > FIRST else 1, -(-watch.nbytes // BEFORE))
        names = {key.partition("/")[2] for key in self._expected}
        chosen = {name for name in names if zlib.crc32(name.encode()) % turns == watch.number % turns}
        read_engine(watch.engine, watch.names, self._before, chosen.__contains__, lambda: False)
        if turns == TURNS and is_on_cpu(watch.engine) and self._list_written():
            read_engine(watch.engine, watch.names, self._before, (names - chosen).__contains__, lambda: False)

    def _list_written(self) -> dict[str, str]:
        """Return what the engine held otherwise than after the last sync."""
        return {key: value for key, value in self._before.fetch().items() if self._expected.get(key, value) != value}

    def add(self, name: str, tensor: Any, held: Any) -> None:
        """Look at a tensor that is sent. held: the dtype in which the engine holds it, None if not known."""
        self._ranges.add(name, tensor)
        if self.trainer is not None:
            self.trainer.compare(name, tensor, held)
        if not hasattr(tensor, "data_ptr") or held != tensor.dtype:
            return
        is_own = self.trainer is not None and self.trainer.keeps(name)
        is_early = self._watch.number <= FIRST and not is_own and self._kept_bytes + tensor.nbytes <= BEFORE
        if is_early or (name in self._watch.suspects and tensor.nbytes <= MOST_BYTES):
            self._kept[name] = tensor.detach().clone()
            self._kept_bytes += tensor.nbytes

    def finish(self, sync: SyncRecord, names: Collection[str], *, is_whole: bool) -> None:
        """Write what differs into the record. names: of all that was sent. is_whole: no weight passed the watch by."""
        # an engine that shares its memory with the trainer has the new values already
        sync.written = {
            key: value for key, value in self._list_written().items() if value != sync.sent.get(key.partition("/")[2])
        }
        if self.trainer is not None and (sync.sent or not names):
            for field, value in self.trainer.finish(sync.sent, names, is_whole=is_whole).items():
                setattr(sync, field, value)
        ranges = {name: values for name, values in self._ranges.fetch().items() if name in sync.sent}
        sync.odd = find_odd(ranges, self._watch.ranges)
        if self._watch.engine is not None:
            sync.altered = {**sync.altered, **self._describe_held(sync, ranges, self._watch.engine)}
        if sync.ok:
            self._watch.engine_before = dict(sync.held)

    def _describe_held(self, sync: SyncRecord, ranges: Mapping[str, Range], engine: WatchedEngine) -> dict[str, str]:
        """Return how the engine's tensors differ from what was sent: by a copy of that, of a few; by their ranges, of the others.

        ranges: name → range of what was sent.
        """
        unequal = {
            key.partition("/")[2]: key
            for key, value in sync.held.items()
            if value not in NO_BYTES
            and value not in (sync.sent.get(name := key.partition("/")[2]), sync.cast.get(name))
        }
        own = self.trainer.own if self.trainer is not None else {}
        suspects = [name for name in unequal if name in sync.sent][:MOST] if sync.alike else []
        self._watch.suspects = frozenset(suspects)
        altered: dict[str, str] = {}
        parts: dict[str, EnginePart] = {}
        held_ranges = Ranges()
        for part, held in read_parts(engine, self._watch.names) if unequal else ():
            if (key := unequal.get(name := part.name)) is None:
                continue
            ours = self._kept.get(name, own.get(name)) if may_describe(altered) else None
            # the trainer may have changed its memory since, as it takes an adapter out again
            if _has_kind(ours, held) and digest_tensor(ours) == sync.sent.get(name):
                describe = describe_difference if self.trainer is None else partial(self.trainer.side.describe, name)
                altered[key] = describe(ours, held)
            else:
                parts[key] = part
                held_ranges.add(key, held)
        for key, values in held_ranges.fetch().items():
            word = describe_range(values, ranges.get(parts[key].name))
            if word.startswith(SCALED) and self._expected.get(key) == sync.held[key]:
                continue  # it did not change at all
            sources = [ranges[name] for name in parts[key].sources if name in ranges]
            if word and sources and all(describe_range(each) != word for each in sources):
                altered[key] = word
        return altered


def _has_kind(ours: Any, held: Any) -> bool:
    """Whether a copy has the shape and dtype that the engine holds: one that casts or packs holds no such numbers."""
    return ours is not None and (ours.shape, ours.dtype) == (held.shape, held.dtype) and ours.nbytes <= MOST_BYTES
