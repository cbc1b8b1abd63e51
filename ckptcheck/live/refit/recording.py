"""Writes the syncs of a trial to a record, in the format of a training job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Report
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.runs.history.record import Record, SyncRecord


class RecordError(CkptcheckError):
    """A trial is over and its record cannot be written. `report` is the report of the trial."""

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report


def append_to_record(trace: RefitTrace, path: Path) -> None:
    """Append the syncs of a trial to a record."""
    file = Record(path)
    for sync in to_record(trace):
        file.append(sync)


def _is_exported(trace: RefitTrace, step: int) -> bool:
    """Whether what the trainer's ranks hold after a step is what it exports: then its identity is that of what was sent."""
    return any(each.step == step and not each.wrong for each in trace.export_comparisons)


def to_record(trace: RefitTrace) -> Iterator[SyncRecord]:
    """Yield each sync of a trial as a record has it, without opaque tensors, which have no digest."""
    trainer = f"{trace.trainer.name} {trace.trainer.version}" if trace.trainer else ""
    engine = f"{trace.engine.name} {trace.engine.version}" if trace.engine else ""
    version: str | None = None
    for sync in trace.syncs:
        engine_digests = {
            f"{rank}/{name}": entry.digest for (rank, name), entry in sync.manifest.items() if not entry.opaque
        }
        yield SyncRecord(
            time=sync.time,
            step=sync.step,
            before=version,
            version=sync.answer.weight_version,
            loss=trace.steps[sync.step - 1].loss if 0 < sync.step <= len(trace.steps) else None,
            seconds=sync.answer.seconds,
            checked=sync.check_seconds,
            nbytes=sync.nbytes,
            ok=sync.answer.ok,
            message=sync.answer.message,
            trainer=trainer,
            engine=engine,
            sent=dict(sync.sent),
            held=engine_digests,
            identity=trace.trainer_identities.get(sync.step) if _is_exported(trace, sync.step) else None,
            held_identity=trace.engine_identities.get(sync.number) if "engine" not in trace.identity_gaps else None,
            alike=True,
        )
        version = sync.answer.weight_version
