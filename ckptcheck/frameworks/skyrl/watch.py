"""Watches SkyRL's weight sender."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import wraps
from typing import Any, TypeVar

from ckptcheck.watch.interface import Interface
from ckptcheck.watch.passing import await_result, count_steps
from ckptcheck.watch.syncing import Syncing
from ckptcheck.watch.watch import Watch

T = TypeVar("T")
INTERFACE = Interface("SkyRL", "2026-08-21", "a9564572e", {"send_chunks": ("chunks", "weight_metadata")})


def skyrl(sender: T, watch: Watch) -> T:
    """Watch SkyRL's weight sender (`_weight_transfer_sender` of a policy worker); call it on every rank, enabled on rank 0.

    It gets no step, so the watch counts syncs. The watch sees every tensor of every `WeightChunk`, also with the strategy that
    sends deltas of them. A job with adapters sends files in place of chunks, which do not pass here.
    """
    owner: Any = sender
    if not INTERFACE.check(owner):
        return sender
    send, next_step = owner.send_chunks, count_steps()

    @wraps(send)
    async def watched(chunks: Iterable[Any], *arguments: Any, **keywords: Any) -> Any:
        sync = watch(step=next_step())
        sync.before()
        return await await_result(sync, send(_pass_chunks(sync, chunks), *arguments, **keywords))

    owner.send_chunks = watched
    return sender


def _pass_chunks(sync: Syncing, chunks: Iterable[Any]) -> Iterator[Any]:
    for chunk in chunks:
        sync.sent(list(zip(chunk.names, chunk.tensors, strict=False)))
        handed = [chunk]
        del chunk
        # release it before the sender makes the next one
        yield handed.pop()
