"""Digests of what passes a watch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

Weights = Iterable[tuple[str, Any]]
"""Pairs of a name with a torch tensor, a numpy array or a digest."""


def digest_tensor(tensor: Any) -> str:
    """Digest a torch tensor on its own device, or a numpy array; equal bytes give equal digests."""
    if hasattr(tensor, "data_ptr"):
        from ckptcheck.runtime.worker.ckptcheck_worker.digest import digest as of_torch

        return of_torch(tensor)
    from ckptcheck.runtime.engines.digest import digest as of_numpy

    return of_numpy(tensor)


def digests(weights: Weights) -> Mapping[str, str]:
    """Return name → digest, to send to the rank that keeps the record."""
    return {name: digest_tensor(tensor) for name, tensor in weights}


def digest_rows(tensor: Any, rows: slice) -> str:
    """Digest some rows of a torch tensor or a numpy array: equal bytes give equal digests, also on another device.

    It is not the digest that `digest_tensor` gives the same bytes. For the few rows that a schedule chooses it takes less time.
    """
    part = tensor[rows]
    if hasattr(part, "data_ptr"):
        from ckptcheck.runtime.worker.ckptcheck_worker.digest import copy_bytes

        part = copy_bytes(part)
    return hashlib.blake2b(part if part.flags.c_contiguous else part.tobytes(), digest_size=16).hexdigest()
