"""What the record shows to be wrong with one sync, and the rules that say so: a gap between the two sides follows from it."""

from __future__ import annotations

from collections.abc import Callable

from ckptcheck.runs.history.history import History, find_swapped, tensors_stored_as_sent
from ckptcheck.runs.history.record import PLAINLY, SyncRecord


def _is_unequal(history: History, index: int) -> bool:
    sync = history.syncs[index]
    return (
        any("/" in place and text.startswith(PLAINLY) for place, text in sync.altered.items())
        or bool(sync.sent and history.stored_as_sent.intersection(sync.held) - tensors_stored_as_sent(sync))
        or any(pair.index == index and any(history.stale_tensors(pair)) for pair in history.pairs)
        or bool(history.lost_on_the_way(index) or (sync.alike and find_swapped(sync)))
    )


def _is_unchanged(history: History, index: int) -> bool:
    return any(pair.index == index and pair.is_step and history.find_unchanged_side(pair) for pair in history.pairs)


def _is_older(history: History, index: int) -> bool:
    return any(pair.index == index and history.find_older(pair) for pair in history.pairs)


def _of_sync(is_met: Callable[[SyncRecord], object]) -> Callable[[History, int], object]:
    return lambda history, index: is_met(history.syncs[index])


FAULTS: tuple[tuple[str, tuple[str, ...], Callable[[History, int], object]], ...] = (
    ("that sync sent nothing", ("HIS014",), _of_sync(lambda sync: sync.is_empty)),
    (
        "not all that is trained was sent",
        ("HIS017", "HIS007"),
        lambda history, index: history.keep_held(history.syncs[index].unsent),
    ),
    ("what was sent is not what is trained", ("HIS025",), _of_sync(lambda sync: sync.trained or sync.is_merged_wrong)),
    ("what was sent looks wrong", ("HIS029",), _of_sync(lambda sync: sync.odd)),
    ("the engine did not hold all that was sent", ("HIS008", "HIS001", "HIS007"), _is_unequal),
    ("that sync sent the values of an older step", ("HIS006",), _is_older),
    (
        "a matrix was sent unchanged, while others of its kind changed",
        ("HIS004",),
        lambda history, index: any(index in resting for resting in history.stopped_matrices.values()),
    ),
    ("that sync changed nothing", ("HIS002",), _is_unchanged),
)
"""What is wrong with a sync, the rules that may say it, and how the record shows it."""


def find_fault(history: History, index: int) -> tuple[str, tuple[str, ...]]:
    """Return what is wrong with a sync, and the codes of `FAULTS`; "" and none where the record shows nothing."""
    return next(((text, codes) for text, codes, is_met in FAULTS if is_met(history, index)), ("", ()))
