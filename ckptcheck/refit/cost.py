"""What syncs cost, and what it cost to check them: a table of the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckptcheck.phrase import size
from ckptcheck.report import Section

if TYPE_CHECKING:
    from ckptcheck.refit.trace import Sync

COLUMNS = ("sync", "step", "sent", "buckets", "sync s", "update s", "check s", "check / sync", "sent digests s")


def costs(syncs: Sequence[Sync]) -> tuple[Section, ...]:
    """Return the table, () where nothing was checked.

    sync s: export and update, as a job has them; update s: the engine's share. check s: one pass of digests over what the engine
    holds, and the comparison with the cold load. sent digests s: the same on the trainer, which tells what was sent.
    """
    rows = [
        (
            sync.number,
            sync.step,
            size(sync.nbytes),
            sync.buckets,
            sync.seconds,
            sync.answer.seconds,
            sync.check_seconds,
            sync.check_seconds / sync.seconds if sync.seconds else None,
            sync.sent_seconds,
        )
        for sync in syncs
        if sync.manifest
    ]
    return (Section("cost of the syncs, and of checking them", COLUMNS, tuple(rows)),) if rows else ()
