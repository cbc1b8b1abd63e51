"""The functions of a sender without a model: broadcasts the tensors of files, as a trainer broadcasts its weights."""

from __future__ import annotations

import os
import signal
from typing import Any

from . import communicator, interruptions, tensor_files


def prepare() -> None:
    """Import what `send` needs."""
    import torch  # noqa: F401


def send(group: dict[str, Any], buckets: list[dict[str, Any]]) -> None:
    """Broadcast buckets as rank 0 of a group; entries between them may delay it or end this process (interruptions.py)."""
    with communicator.join_as_sender(group) as broadcast:
        for bucket in buckets:
            try:
                is_interruption = interruptions.interrupt(bucket)
            except interruptions.SenderDied:
                os.kill(os.getpid(), signal.SIGKILL)
            if not is_interruption:
                for _, tensor in tensor_files.read_bucket(bucket):
                    broadcast(tensor)


RPC_METHODS = {"prepare": prepare, "send": send}
