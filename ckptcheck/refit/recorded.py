"""A trial's syncs as a record keeps them, so that a trial and a training job tell the same story."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ckptcheck.history.record import Record
from ckptcheck.history.record import Sync as Recorded
from ckptcheck.refit.trace import RefitTrace


def append(trace: RefitTrace, path: Path) -> None:
    """Append the syncs of a trial to a record."""
    file = Record(path)
    for sync in recorded(trace):
        file.append(sync)


def recorded(trace: RefitTrace) -> Iterator[Recorded]:
    """Yield each sync of a trial. Opaque tensors are left out: they have no digest."""
    trainer = f"{trace.trainer.name} {trace.trainer.version}" if trace.trainer else ""
    engine = f"{trace.engine.name} {trace.engine.version}" if trace.engine else ""
    told: str | None = None
    for sync in trace.syncs:
        held = {f"{rank}/{name}": entry.digest for (rank, name), entry in sync.manifest.items() if not entry.opaque}
        yield Recorded(
            time=sync.time,
            step=sync.step,
            before=told,
            version=sync.answer.version,
            loss=trace.steps[sync.step - 1].loss if 0 < sync.step <= len(trace.steps) else None,
            seconds=sync.answer.seconds,
            checked=sync.check_seconds,
            nbytes=sync.nbytes,
            ok=sync.answer.ok,
            message=sync.answer.message,
            trainer=trainer,
            engine=engine,
            sent=dict(sync.sent),
            held=held,
            alike=True,
        )
        told = sync.answer.version
