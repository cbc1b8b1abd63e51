"""Watches the functions that send NeMo-RL's weights."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from ckptcheck.watch.adapters.passing import count_steps, watch_weights
from ckptcheck.watch.watch import Watch

T = TypeVar("T")


def nemo_rl(send: Callable[..., T], watch: Watch) -> Callable[..., T]:
    """Wrap one of the two functions by which NeMo-RL's policy workers send all weights to vLLM; return the wrapper.

    send: `stream_weights_via_ipc_zmq_impl` (colocated) or `packed_broadcast_producer` (otherwise). It gets no step, so the
    watch counts syncs. With nccl_reshard only a part of the weights passes the second one, which the record then says.
    The watch cannot see the engine's side, because its HTTP server has no checksums.
    """
    next_step = count_steps()

    @wraps(send)
    def watched(*arguments: Any, **keywords: Any) -> T:
        with watch(step=next_step()) as sync:
            if sys._getframe(1).f_code.co_name == "_broadcast_misc_params_packed":
                sync.partly("nccl_reshard sends the layers' weights another way, and only the others here")
            arguments, keywords = watch_weights(sync, arguments, keywords, ("params_generator", "iterator"))
            return send(*arguments, **keywords)

    return watched
