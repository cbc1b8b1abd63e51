"""One sync: the trainer's weights on their way into the engine."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from ckptcheck.engines.base import Answer, Engine, Parcel
from ckptcheck.engines.group import PLANES, addressed, rendezvous
from ckptcheck.errors import CkptcheckError
from ckptcheck.host.patience import left
from ckptcheck.host.trouble import HostDied, VerbError
from ckptcheck.refit.passage import Busy
from ckptcheck.trainers.base import Lender, Trainer

LONGEST = 3600.0
"""Seconds that a side waits for the other in a group, where nothing else limits it."""
GRACE = 5.0
"""Seconds in which a side notices by itself that the other has failed."""


def send(
    trainer: Trainer, engine: Engine, bucket_bytes: int, transport: str, key: str, busy: Busy | None = None
) -> tuple[list[Parcel], Answer]:
    """Send all weights by that transport; return what was sent and what the engine said. key: another one for every sync.

    By ipc the engine opens the trainer's own memory. Over a process group both sides wait for each other, so the trainer sends
    from a thread, and the end of one ends the other: it would wait for what will not come. Raises what the side raised that failed
    first.
    """
    plane = PLANES.get(transport, {}).get(engine.info.name)
    if transport == "ipc":
        return _lent(trainer, engine, bucket_bytes)
    if plane is None:
        parcels = trainer.export(bucket_bytes)
        try:
            return parcels, busy.refit(engine, parcels) if busy else engine.refit(parcels, transport)
        finally:  # many syncs would fill the plane
            for parcel in parcels:
                if "path" in parcel.address:
                    Path(parcel.address["path"]).unlink(missing_ok=True)
    group = rendezvous(engine.info.ranks, key, timeout=left(LONGEST), plane=plane)
    if plane == "nccl-id":
        group["unique_id"] = lender(trainer).unique_id()
    parcels = addressed(trainer.plan(bucket_bytes), group)
    over, ended = threading.Event(), threading.Event()

    def failed(sending: Future[None]) -> None:
        if sending.exception() is not None and not over.wait(GRACE):
            ended.set()
            engine.close()

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(contextvars.copy_context().run, trainer.send, group, bucket_bytes)
        sending.add_done_callback(failed)
        try:
            answer = engine.refit(parcels, transport)
        except BaseException as error:
            over.set()
            if ended.is_set():
                raise sending.exception() or error from None
            if not sending.done():
                trainer.close()
            raise
        over.set()
        if plane != "gloo" and not answer.ok and not wait([sending], GRACE).done:  # NCCL has no end to its patience
            trainer.close()
            raise HostDied(
                f"{engine.info.name} left the update ({answer.message}),"
                f" and {trainer.info.name}, which waited for it in NCCL, was ended"
            )
        try:
            sending.result()
        except VerbError:
            if answer.ok:
                raise  # else the engine left the group first, and has said why
    return parcels, answer


def _lent(trainer: Trainer, engine: Engine, bucket_bytes: int) -> tuple[list[Parcel], Answer]:
    gpus = list(dict.fromkeys(engine.info.facts["gpus"].split(",")))
    held = lender(trainer)
    parcels = held.lend(bucket_bytes, gpus)
    try:
        answer = engine.refit(parcels, "ipc")
    except BaseException:
        with contextlib.suppress(CkptcheckError):  # what went wrong first is told
            held.reclaim()
        raise
    held.reclaim()
    return parcels, answer


def lender(trainer: Trainer) -> Lender:
    """Return a trainer as one whose weights can be had from its GPUs. Raises CkptcheckError where it is none."""
    if not isinstance(trainer, Lender):
        raise CkptcheckError(f"weights of {trainer.info.name} leave it by files or gloo only")
    return trainer
