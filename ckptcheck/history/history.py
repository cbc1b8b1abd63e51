"""The last syncs as evidence: what changed from one to the next, on either side."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from ckptcheck.dialects.made import parts
from ckptcheck.history.record import Sync, read
from ckptcheck.history.told import told
from ckptcheck.report import Section

SMALL = re.compile(r"(norm|bias|scale|layernorm|A_log|\.D$)", re.IGNORECASE)
"""Tensors of a few numbers near 1 or 0: a step may round to nothing in all of them."""
EXPERT = re.compile(r"\.experts\.\d+\.")
NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True)
class Turn:
    """One sync after another of the same run, both of which succeeded. index, earlier: their places in the record.

    moved: names whose sent digest changed. turned: ``rank/name`` whose digest in the engine changed. same: not one did, on
    the side that is known, the trainer's first.
    """

    index: int
    earlier: int
    before: Sync
    after: Sync

    @property
    def stepped(self) -> bool:
        """Whether the trainer moved on: by its step, or where it counts none, by its loss."""
        if self.before.step is not None and self.after.step is not None:
            return self.after.step > self.before.step
        return self.before.loss is not None and self.after.loss is not None and self.after.loss != self.before.loss

    @cached_property
    def moved(self) -> frozenset[str]:
        """Names that were sent both times, with other numbers."""
        return _changed(self.before.sent, self.after.sent)

    @cached_property
    def turned(self) -> frozenset[str]:
        """Tensors that the engine held both times, with other numbers."""
        return _changed(self.before.held, self.after.held)

    @cached_property
    def same(self) -> tuple[str, int] | None:
        """Return which side stayed as it was in all of its tensors, and how many; None where something changed."""
        for side, before, after, changed in (
            ("sent", self.before.sent, self.after.sent, self.moved),
            ("held", self.before.held, self.after.held, self.turned),
        ):
            if before and after:
                return (side, len(after)) if not changed and before.keys() == after.keys() else None
        return None


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> frozenset[str]:
    return frozenset(name for name, value in after.items() if name in before and before[name] != value)


@dataclass(frozen=True)
class History:
    """Syncs in the order in which they were recorded. damaged: number of a line → why it is none."""

    target: str
    syncs: tuple[Sync, ...]
    damaged: Mapping[int, str] = field(default_factory=dict)
    kind: str = "history"

    @property
    def subject(self) -> str:
        """How many syncs, over which steps, between which programs."""
        steps = [sync.step for sync in self.syncs if sync.step is not None]
        sides = " → ".join(side for side in (self.syncs[-1].trainer, self.syncs[-1].engine) if side)
        parts_ = [f"{len(self.syncs)} sync{'s' if len(self.syncs) > 1 else ''}"]
        if steps:
            first, last = min(steps), max(steps)
            parts_.append(f"step {first}" if first == last else f"steps {first}–{last}")
        return " · ".join([*parts_, sides] if sides else parts_)

    @property
    def unread(self) -> Mapping[str, str]:
        """Nothing: a damaged line is a finding."""
        return {}

    @property
    def counts(self) -> Mapping[str, int]:
        """Syncs, tensors of the last, bytes of all."""
        last = self.syncs[-1]
        return {
            "files": len(self.syncs),
            "tensors": max(len(last.sent), len(last.held)),
            "bytes": sum(sync.nbytes for sync in self.syncs),
        }

    @property
    def sections(self) -> tuple[Section, ...]:
        """The table of the syncs."""
        return told(self)

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        """Each sync with the last one before it that succeeded, where the same process recorded both."""
        whole = [(index, sync) for index, sync in enumerate(self.syncs) if sync.ok]
        return tuple(
            Turn(index, earlier, before, after)
            for (earlier, before), (index, after) in pairwise(whole)
            if before.run == after.run
        )

    @cached_property
    def steps(self) -> tuple[Turn, ...]:
        """The turns between which the trainer moved on, and both of which say what was sent, or what is held."""
        return tuple(
            turn
            for turn in self.turns
            if turn.stepped and ((turn.before.sent and turn.after.sent) or (turn.before.held and turn.after.held))
        )

    @cached_property
    def never(self) -> tuple[str, ...]:
        """Names that were sent with the same numbers at every step."""
        moved = frozenset[str]().union(*(turn.moved for turn in self.steps)) if self.steps else frozenset()
        return tuple(name for name in self.syncs[-1].sent if name not in moved)

    @cached_property
    def plain(self) -> frozenset[str]:
        """Tensors (``rank/name``) that the engine held, at some sync, bit for bit as they were sent."""
        return frozenset(key for sync in self.syncs for key in as_sent(sync))

    def stale(self, turn: Turn) -> tuple[str, ...]:
        """Return the engine's tensors that did not change, though something they are made of was sent with other numbers.

        A norm or a bias counts only where the engine holds it as it is sent: where it rounds, a step may be lost in it.
        """
        names = turn.after.sent.keys()
        return tuple(
            key
            for key in turn.after.held
            if key in turn.before.held
            and key not in turn.turned
            and turn.moved.intersection(parts(key.partition("/")[2], names))
            and (key in self.plain or not SMALL.search(key))
        )

    def name(self, index: int) -> str:
        """Name a sync as its reader finds it: by step, else by its place."""
        sync = self.syncs[index]
        return f"step {sync.step}" if sync.step is not None else f"sync {index + 1}"


def as_sent(sync: Sync) -> set[str]:
    """Return what the engine held as it was sent; nothing where the two digests do not compare."""
    if not sync.alike:
        return set()
    return {key for key, value in sync.held.items() if sync.sent.get(key.partition("/")[2]) == value}


def open_history(path: Path | str) -> History:
    """Read a record. Raises CkptcheckError as `read` does."""
    syncs, damaged = read(path)
    return History(str(path), syncs, damaged)


def matrices(names: Collection[str]) -> Iterator[str]:
    """Yield the names of tensors that any step changes, unless they are frozen: no norms or biases, no single experts.

    An expert that no token was routed to has no gradient; a norm near 1 may be left alone by bf16.
    """
    return (name for name in names if not SMALL.search(name) and not EXPERT.search(name))


def kind(name: str) -> str:
    """Return a name without its numbers: what it has in common with its siblings in other layers."""
    return NUMBER.sub("{}", name)
