"""Copies of experts in an engine: every copy is held to a cold load, before and after the engine moves experts (EPLB).

An engine with redundant experts has more slots than experts, and a map that says which expert lies in which slot. A weight update
names an expert; the loader has to write all of its copies, where they lie now. Nothing happens without redundant experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ckptcheck.live.refit.logprob_diff import LogprobDiff
from ckptcheck.live.runtime.engines.base import Engine, ExpertSlots
from ckptcheck.live.runtime.engines.capabilities import find_able

Key = tuple[int, str]
Slots = Mapping[Key, ExpertSlots]


@dataclass(frozen=True)
class WrongSlot:
    """A slot that does not hold what its expert is in a cold load."""

    key: Key
    """Rank and tensor."""
    slot: int
    expert: int
    """The expert that the engine's map names."""
    held: str = ""
    """What it holds instead, where that is known: "expert 3", "expert 2 as it was before the step"."""


@dataclass(frozen=True)
class ExpertMove:
    """What the engine's own balancing of experts did between two syncs."""

    moved: int
    """Slots that hold another expert afterwards, by the engine's map."""
    slots: int
    wrong: tuple[WrongSlot, ...]
    """Slots that are not right afterwards, although they were before."""
    logprobs: LogprobDiff | None = None
    """How far logprobs moved; None if none were compared."""


def read_slots(engine: Engine) -> Slots:
    """Digest each slot of an engine that holds copies of experts; {} for any other."""
    balancing = find_able(engine, "expert copies")
    return {} if balancing is None else balancing.digest_expert_slots()


def count_moves(before: Slots, after: Slots) -> int:
    """Return how many slots hold another expert than before, by the engine's map."""
    return sum(
        one != other
        for key, slots in before.items()
        if key in after
        for one, other in zip(slots.experts, after[key].experts, strict=True)
    )


def find_wrong_slots(found: Slots, reference: Slots, earlier: Slots) -> tuple[WrongSlot, ...]:
    """Return the slots whose expert is not that of a cold load, wherever it lies there.

    earlier: the slots of a cold load from before the step, to tell what a wrong slot holds instead; {} where there is none.
    """
    expected, before = _index_experts(reference), _index_experts(earlier)
    wrong = []
    for key, slots in found.items():
        for slot, (expert, digest) in enumerate(zip(slots.experts, slots.digests, strict=True)):
            own = expected.get((key[1], slots.part), {})
            if expert not in own or own[expert] == digest:
                continue
            held = [f"expert {other}" for other, value in own.items() if value == digest]
            old = before.get((key[1], slots.part), {})
            held += [f"expert {other} as it was before the step" for other, value in old.items() if value == digest]
            wrong.append(WrongSlot(key, slot, expert, held[0] if held else ""))
    return tuple(wrong)


def _index_experts(slots: Slots) -> dict[tuple[str, int], dict[int, str]]:
    """Return, for each tensor and part of it, expert → digest of its first copy."""
    found: dict[tuple[str, int], dict[int, str]] = {}
    for (_, name), each in sorted(slots.items()):
        own = found.setdefault((name, each.part), {})
        for expert, digest in zip(each.experts, each.digests, strict=True):
            own.setdefault(expert, digest)
    return found
