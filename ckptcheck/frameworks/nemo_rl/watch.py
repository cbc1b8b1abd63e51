"""Watches the functions that send NeMo-RL's weights."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from ckptcheck.watch.interface import Interface
from ckptcheck.watch.passing import count_steps, watch_weights
from ckptcheck.watch.watch import Watch

T = TypeVar("T")
INTERFACE = Interface(
    "NeMo-RL",
    "2026-08-22",
    "7ea279abf",
    {"stream_weights_via_ipc_zmq_impl": ("params_generator",), "packed_broadcast_producer": ("iterator",)},
)
"""Functions, and the argument by which each gets the weights, also as its first one."""


def nemo_rl(send: Callable[..., T], watch: Watch) -> Callable[..., T]:
    """Wrap one of the two functions by which NeMo-RL's policy workers send all weights to vLLM; return the wrapper.

    send: `stream_weights_via_ipc_zmq_impl` (colocated) or `packed_broadcast_producer` (not colocated). It gets no step, so the
    watch counts syncs. With nccl_reshard only a part of the weights passes the second one, which the record then says.
    The watch cannot see the engine's side, because its HTTP server has no checksums; CKPTCHECK_WATCH shows it from inside vLLM.
    """
    next_step, is_known = count_steps(), INTERFACE.check_function(send)

    @wraps(send)
    def watched(*arguments: Any, **keywords: Any) -> T:
        with watch(step=next_step()) as sync:
            if sys._getframe(1).f_code.co_name == "_broadcast_misc_params_packed":
                sync.partly("nccl_reshard sends the layers' weights another way, and only the others here")
            if is_known:
                arguments, keywords = watch_weights(sync, arguments, keywords, ("params_generator", "iterator"))
            else:
                sync.unseen("NeMo-RL has another interface here")
            return send(*arguments, **keywords)

    return watched
