"""Digests tensors that pass a watch, where they lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ckptcheck.live.runtime.engines.digest import digest
from ckptcheck.live.runtime.worker.ckptcheck_worker import shard_digest
from ckptcheck.values.shard_digest import format_sums, sum_memory

Weights = Iterable[tuple[str, Any]]
"""Pairs of a name with a torch tensor, a numpy array or a digest."""


def digest_tensor(tensor: Any) -> str:
    """Digest a torch tensor on its own device, or a numpy array; equal bytes give equal digests."""
    if not hasattr(tensor, "data_ptr"):
        return digest(tensor)
    if tensor.device.type != "cpu":
        return shard_digest.digest(tensor)
    # in the host's memory the compiled kernel of ckptcheck takes less time than torch
    tensor = tensor.detach().contiguous()
    # a tensor that wraps others has no memory of its own
    sums = sum_memory(address, tensor.nbytes) if (address := tensor.data_ptr()) else None
    return digest(shard_digest.view_bytes(tensor)) if sums is None else format_sums(sums, tensor.nbytes)


def digests(weights: Weights) -> Mapping[str, str]:
    """Return name → digest, to send to the rank that keeps the record."""
    return {name: digest_tensor(tensor) for name, tensor in weights}


class SyncDigests:
    """The digests of one side of a sync, by name. Those of a GPU stay there until `fetch`, so that no tensor waits for it."""

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}
        self._on_device: dict[str, tuple[Any, int]] = {}
        """Name → the sums of a tensor's digest, on its device, and the tensor's bytes."""
        self.casts: dict[str, str] = {}
        """Name of a tensor that the engine casts → digest of the tensor after the same cast."""
        self.sizes: dict[str, int] = {}
        """Name → bytes; 1 for a digest that came from elsewhere."""

    def __len__(self) -> int:
        return len(self._digests)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(self.sizes.values())

    def add(self, name: str, tensor: Any) -> None:
        """Add a tensor."""
        self.sizes[name] = tensor.nbytes
        # the name keeps its place among those that are digested at once
        self._digests[name] = ""
        if hasattr(tensor, "data_ptr") and tensor.device.type not in ("cpu", "meta"):
            self._on_device[name] = shard_digest.sum_shard(tensor), tensor.nbytes
        else:
            self._digests[name] = digest_tensor(tensor)

    def add_digests(self, digests: Mapping[str, str]) -> None:
        """Add digests that the job or the engine computed itself."""
        self._digests.update(digests)
        self.sizes |= dict.fromkeys(digests, 1)

    def clear(self) -> None:
        """Drop everything: a part of the digests would look as if the rest had not been sent."""
        self._digests, self._on_device, self.casts, self.sizes = {}, {}, {}, {}

    def fetch(self) -> dict[str, str]:
        """Return name → digest. It waits for each device once."""
        waiting, self._on_device = self._on_device, {}
        self._digests.update(zip(waiting, shard_digest.format_words(list(waiting.values())), strict=True))
        return self._digests
