"""Sends the trainer's weights to the engine: one sync."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit.inflight import InflightUpdate
from ckptcheck.live.runtime.engines.base import Bucket, Engine, UpdateResult
from ckptcheck.live.runtime.engines.process_group import address_buckets, create_rendezvous
from ckptcheck.live.runtime.engines.transports import Transport, select_transport
from ckptcheck.live.runtime.process.deadlines import remaining_seconds
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied
from ckptcheck.live.runtime.trainers.base import GpuTrainer, Trainer

GROUP_TIMEOUT = 3600.0
"""Seconds that one side waits for the other in a group, unless a time budget is shorter."""
GRACE = 5.0
"""Seconds in which one side notices by itself that the other has failed."""

Sent = tuple[list[Bucket], UpdateResult]
Send = Callable[[Trainer, Engine, int, Transport, str], Sent]
"""(trainer, engine, bucket bytes, transport, key) → the buckets and the result of the engine's update."""


def send_weights(
    trainer: Trainer,
    engine: Engine,
    bucket_bytes: int,
    transport: str,
    key: str,
    inflight: InflightUpdate | None = None,
) -> Sent:
    """Send all weights by a transport; return the buckets and the result of the engine's update.

    key: a new one for every sync. inflight: the requests that run meanwhile; only with a transport that supports them. Raises the
    error of the side that failed first.
    """
    row = select_transport(engine.transports, transport, engine.info.name)
    if inflight is not None:
        return _send_files(trainer, engine, bucket_bytes, row, key, inflight.refit)
    return SENDERS[row.sender](trainer, engine, bucket_bytes, row, key)


def _send_files(
    trainer: Trainer,
    engine: Engine,
    bucket_bytes: int,
    transport: Transport,
    key: str,
    update: Callable[[Engine, list[Bucket], str], UpdateResult] | None = None,
) -> Sent:
    """Write the weights to files, which the engine's worker reads."""
    buckets = trainer.export(bucket_bytes)
    try:
        if update is not None:
            return buckets, update(engine, buckets, transport.name)
        return buckets, engine.update_weights(buckets, transport.name)
    finally:
        # the files of many syncs would fill the memory
        for bucket in buckets:
            if "path" in bucket.address:
                Path(bucket.address["path"]).unlink(missing_ok=True)


def _send_to_group(trainer: Trainer, engine: Engine, bucket_bytes: int, transport: Transport, key: str) -> Sent:
    """Broadcast the weights in a process group.

    Both sides wait for each other, so the trainer sends from a thread. If one side ends, the other would wait forever, so it is
    ended too.
    """
    timeout = remaining_seconds(GROUP_TIMEOUT)
    group = create_rendezvous(engine.info.ranks, key, timeout=timeout, kind=transport.rendezvous)
    if transport.needs_unique_id:
        group["unique_id"] = require_gpu_trainer(trainer).nccl_unique_id()
    buckets = address_buckets(trainer.plan_buckets(bucket_bytes), group)
    update_is_over, engine_was_ended = threading.Event(), threading.Event()

    def end_engine(sending: Future[None]) -> None:
        if sending.exception() is not None and not update_is_over.wait(GRACE):
            engine_was_ended.set()
            engine.close()

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(contextvars.copy_context().run, trainer.send, group, bucket_bytes)
        sending.add_done_callback(end_engine)
        try:
            result = engine.update_weights(buckets, transport.name)
        except BaseException as error:
            update_is_over.set()
            if engine_was_ended.is_set():
                raise sending.exception() or error from None
            if not sending.done():
                trainer.close()
            raise
        update_is_over.set()
        # NCCL has no timeout: a trainer whose engine left the group would wait forever
        if transport.is_between_gpus and not result.ok and not wait([sending], GRACE).done:
            trainer.close()
            raise WorkerDied(
                f"{engine.info.name} left the update ({result.message}),"
                f" and {trainer.info.name}, which waited for it in NCCL, was ended"
            )
        try:
            sending.result()
        except RemoteError:
            # a failed update of the engine comes first, and explains the error of the trainer
            if result.ok:
                raise
    return buckets, result


def _share_memory(trainer: Trainer, engine: Engine, bucket_bytes: int, transport: Transport, key: str) -> Sent:
    """Let the engine open the trainer's own GPU memory."""
    gpus = list(dict.fromkeys(engine.info.facts["gpus"].split(",")))
    gpu_trainer = require_gpu_trainer(trainer)
    buckets = gpu_trainer.share_ipc(bucket_bytes, gpus)
    try:
        result = engine.update_weights(buckets, transport.name)
    except BaseException:
        # the first error is the one to report
        with contextlib.suppress(CkptcheckError):
            gpu_trainer.release_ipc()
        raise
    gpu_trainer.release_ipc()
    return buckets, result


SENDERS: Mapping[str, Send] = {
    "files": _send_files,
    "group": _send_to_group,
    "ipc": _share_memory,
}
"""`Transport.sender` → how the trainer sends."""


def require_gpu_trainer(trainer: Trainer) -> GpuTrainer:
    """Return a trainer whose weights can leave it from its GPUs. Raises CkptcheckError for any other."""
    if not isinstance(trainer, GpuTrainer):
        raise CkptcheckError(f"weights of {trainer.info.name} leave it by files or gloo only")
    return trainer
