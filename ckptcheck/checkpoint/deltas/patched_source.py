"""The files of a checkpoint after a chain of deltas. A read computes the bytes; nothing is written."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.deltas.chain import BaseTensor, DeltaChain, UnappliedDelta
from ckptcheck.checkpoint.source import File, Source, describe_version

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_KEPT = 1 << 28
"""Bytes of computed tensors that are kept for the next read: a few matrices, and less than the readers hold themselves."""
LEAST_KEPT = 2
"""Tensors that are kept whatever their size, because several threads read pieces of one."""


class PatchedSource:
    """A source with the tensors of its base after the deltas. Readers treat it as remote: file by file, in ranges."""

    local: Path | None = None

    def __init__(self, chain: DeltaChain) -> None:
        """Describe the files of a chain with a base; nothing is read yet."""
        assert chain.base is not None
        self.chain = chain
        self.target = chain.target
        self._base: Source = chain.base
        self._kept: OrderedDict[str, NDArray[np.uint8]] = OrderedDict()
        self._lock = threading.Lock()
        self._working: dict[str, threading.Lock] = {}

    def __reduce__(self) -> tuple[type[PatchedSource], tuple[DeltaChain]]:
        return PatchedSource, (self.chain,)

    @property
    def allows_sampling(self) -> bool:
        """Whether the base may be read in many small pieces."""
        return self._base.allows_sampling

    @property
    def is_nearby(self) -> bool:
        """Whether all files lie on this machine."""
        return all(source.local is not None for source in (self._base, *(delta.source for delta in self.chain.deltas)))

    @cached_property
    def files(self) -> Mapping[str, File]:
        """The files of the base, each with a version that changes when a delta does."""
        sources = [(delta.source, name) for delta in self.chain.deltas for name in sorted(delta.source.files)]
        deltas = " ".join(describe_version(source, name) for source, name in sources)
        return {
            name: replace(file, path="", version=f"{describe_version(self._base, name)} {deltas}")
            for name, file in self._base.files.items()
        }

    @cached_property
    def _patched(self) -> dict[str, list[tuple[int, int, str]]]:
        """File → begin, end and name of each of its tensors that a delta changes."""
        places: dict[str, list[tuple[int, int, str]]] = {}
        for name in self.chain.changed_names & self.chain.tensors.keys():
            span = self.chain.tensors[name].span
            places.setdefault(span.file, []).append((span.begin, span.begin + span.nbytes, name))
        return {file: sorted(found) for file, found in places.items()}

    def read(self, name: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes. Raises UnappliedDelta where a delta of a tensor in them could not be applied."""
        if not self.chain.is_known and name.endswith(".safetensors"):
            raise UnappliedDelta("a delta of the chain has a format that is not known")
        places = self._patched.get(name, [])
        at = bisect_right(places, start, key=lambda place: place[1])
        if at < len(places) and places[at][0] <= start and start + length <= places[at][1]:
            begin, _, tensor = places[at]
            return self._compute(tensor)[start - begin : start - begin + length].tobytes()
        raw = bytearray(self._base.read(name, start, length))
        for begin, end, tensor in places[at:]:
            if begin >= start + len(raw):
                break
            low, high = max(begin, start), min(end, start + len(raw))
            raw[low - start : high - start] = self._compute(tensor)[low - begin : high - begin].tobytes()
        return bytes(raw)

    def _compute(self, tensor: str) -> NDArray[np.uint8]:
        with self._lock:
            working = self._working.setdefault(tensor, threading.Lock())
        with working:
            with self._lock:
                if tensor in self._kept:
                    self._kept.move_to_end(tensor)
                    return self._kept[tensor]
            state = self.chain.compute_tensor(tensor)
            with self._lock:
                self._kept[tensor] = state
                total = sum(kept.nbytes for kept in self._kept.values())
                while total > MOST_KEPT and len(self._kept) > LEAST_KEPT:
                    total -= self._kept.popitem(last=False)[1].nbytes
            return state


def list_tensors(shards: Mapping[str, Any], tensor_to_file: Mapping[str, str]) -> dict[str, BaseTensor]:
    """Return the tensors of a checkpoint that their files hold as the headers say. shards: file → header."""
    from ckptcheck.checkpoint.deltas.delta import Span

    found = {}
    for name, file in tensor_to_file.items():
        shard = shards[file]
        tensor = shard.tensors[name]
        if name not in shard.unfit:
            found[name] = BaseTensor(tensor.dtype, tensor.shape, Span(file, shard.locate(name), tensor.nbytes))
    return found
