"""Watches the functions that send NeMo-RL's weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from ckptcheck.watch.adapters.passing import count_steps, watch_weights
from ckptcheck.watch.watch import Watch

T = TypeVar("T")


def nemo_rl(send: Callable[..., T], watch: Watch) -> Callable[..., T]:
    """Wrap one of the two functions by which NeMo-RL's policy workers send all weights to vLLM; return the wrapper.

    send: `stream_weights_via_ipc_zmq_impl` (colocated) or `packed_broadcast_producer` (otherwise). It gets no step, so the
    watch counts syncs. The watch cannot see the engine's side, because its HTTP server has no checksums.
    """
    next_step = count_steps()

    @wraps(send)
    def watched(*arguments: Any, **keywords: Any) -> T:
        with watch(step=next_step()) as sync:
            arguments, keywords = watch_weights(sync, arguments, keywords, ("params_generator", "iterator"))
            return send(*arguments, **keywords)

    return watched
