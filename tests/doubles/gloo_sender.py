"""A trainer's worker that broadcasts the tensors of files."""

from __future__ import annotations

from typing import Any

from ckptcheck_worker import gloo, tensor_files


def send(group: dict[str, Any], parcels: list[dict[str, Any]]) -> None:
    """Broadcast all buckets as rank 0 of a gloo group."""
    with gloo.join_for_sync(group, 0) as process_group:
        for bucket in parcels:
            tensors = tensor_files.read_tensors(bucket["address"])
            for name in bucket["names"]:
                gloo.broadcast(process_group, tensors[name])


RPC_METHODS = {"send": send}
