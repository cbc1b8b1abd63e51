"""Reads tensors, which may lie as rectangles in several files, into arrays.

Files are read, not mapped into memory: a file that shrinks, or a disk that fails, then raises an error instead of killing the
process with a signal. `read_into` fills a buffer that callers reuse, so reading runs at the speed of a copy.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from ckptcheck.checkpoint.source import FileState, Source, describe_state, describe_version, find_nodes, is_rewritten
from ckptcheck.compare.bridge.tensor_layout import TensorLayout
from ckptcheck.text.file_io import open_regular_file
from ckptcheck.values.dtypes import decode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_OVERREAD = 8
"""A rectangle is read in one piece if that reads at most this many times its own bytes, otherwise line by line."""
ENDS_EARLY = "it ends earlier than its header says"


class UnreadableFile(Exception):
    """A file could not be read to the end."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file = file
        self.reason = reason


class TensorFiles:
    """The files of one side, each opened once. Use as a context manager."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._descriptors: dict[str, int] = {}
        self._state_at_listing: dict[str, FileState] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[TensorFiles], tuple[Source]]:
        return TensorFiles, (self.source,)

    def __enter__(self) -> TensorFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def list_changed(self) -> list[str]:
        """Return the files that were written to, or replaced, since they were listed."""
        states = self._state_at_listing.items()
        return [
            file for file, state in states if is_rewritten(state, describe_state(os.fstat(self._descriptors[file])))
        ]

    def read_into(self, file: str, offset: int, buffer: NDArray[np.uint8]) -> None:
        """Fill a buffer with the bytes from `offset` on. Raises UnreadableFile."""
        try:
            if self.source.local is None or not hasattr(os, "preadv"):
                import numpy as np

                raw = self.source.read(file, offset, buffer.size)
                buffer[: len(raw)] = np.frombuffer(raw, np.uint8)
                done = len(raw)
            else:
                descriptor, done = self._open(file), 0
                while done < buffer.size:
                    more = os.preadv(descriptor, [buffer[done:]], offset + done)  # type: ignore[list-item]
                    if more == 0:
                        break
                    done += more
        except OSError as error:
            raise UnreadableFile(file, error.strerror or str(error)) from error
        if done < buffer.size:
            raise UnreadableFile(file, ENDS_EARLY)

    def sum_range(self, file: str, offset: int, nbytes: int, start: int) -> tuple[int, int] | None:
        """Return the addition of a range to the two sums of its tensor's shard digest, without a copy of it.

        None where that is impossible. start: offset of the first byte in the tensor. Raises UnreadableFile.
        """
        from ckptcheck.values.shard_digest import sum_file

        if self.source.local is None:
            return None
        try:
            return sum_file(self._open(file), offset, nbytes, start)
        except EOFError:
            raise UnreadableFile(file, ENDS_EARLY) from None
        except OSError as error:
            raise UnreadableFile(file, error.strerror or str(error)) from error

    def read_rectangle(
        self, file: str, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
    ) -> NDArray[Any]:
        """Return a rectangle as unsigned integers of `itemsize` bytes (1, 2, 4 or 8). Raises UnreadableFile."""
        import numpy as np

        kind = np.dtype(f"<u{itemsize}")
        span = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True)) + itemsize
        useful = prod(shape) * itemsize
        if span <= MAX_OVERREAD * useful:
            raw = np.empty(span, np.uint8)
            self.read_into(file, offset, raw)
            return np.ndarray(shape, kind, raw.data, 0, strides)
        slowest = max(range(len(shape)), key=lambda axis: strides[axis])
        rest, steps = _without(shape, slowest), _without(strides, slowest)
        lines = [
            self.read_rectangle(file, offset + number * strides[slowest], rest, steps, itemsize)
            for number in range(shape[slowest])
        ]
        return np.stack(lines, axis=slowest)

    def read_tensor(self, layout: TensorLayout) -> NDArray[Any]:
        """Return a tensor as unsigned integers; it may lie in several rectangles. Raises UnreadableFile."""
        import numpy as np

        if len(layout.chunks) == 1 and layout.chunks[0].shape == layout.shape:
            chunk = layout.chunks[0]
            return self.read_rectangle(chunk.file, chunk.offset, layout.shape, chunk.strides, layout.itemsize)
        result = np.zeros(layout.shape, f"<u{layout.itemsize}")
        for chunk in layout.chunks:
            reach = zip(chunk.origin, chunk.shape, layout.shape, strict=True)
            if any(low + length > whole for low, length, whole in reach):
                raise UnreadableFile(chunk.file, "it has a part of a tensor that lies beyond the tensor's shape")
            place = tuple(slice(low, low + length) for low, length in zip(chunk.origin, chunk.shape, strict=True))
            result[place] = self.read_rectangle(chunk.file, chunk.offset, chunk.shape, chunk.strides, layout.itemsize)
        return result

    def read_numbers(self, layout: TensorLayout, dtype: str = "", kind: str = "f4") -> NDArray[Any]:
        """Return the numbers of a tensor. Raises UnreadableFile.

        dtype: what it holds, if the stored dtype does not say. kind: numpy's name of the floats that are returned.
        """
        import numpy as np

        patterns = self.read_tensor(layout)
        # Memory that was never written may hold signalling NaN, of which numpy warns.
        with np.errstate(invalid="ignore", over="ignore"):
            return decode(dtype or layout.dtype, patterns).astype(kind, copy=False)

    def _open(self, file: str) -> int:
        with self._lock:
            if file not in self._descriptors:
                descriptor = open_regular_file(self.source.files[file].path)
                self._descriptors[file] = descriptor
                # The state at the listing counts, because the header was read then.
                self._state_at_listing[file] = self.source.files[file].state or describe_state(os.fstat(descriptor))
            return self._descriptors[file]


class WorkOnPairs:
    """The part of `runners.runner.Work` that is the same for all work on pairs of tensors."""

    files: tuple[TensorFiles, TensorFiles]
    """Of the first and of the second side."""
    words: ClassVar[str]
    """The work in words, with {} for each target."""
    remote_units: ClassVar[int]
    """Units at a time where a side is not on this machine."""

    @property
    def name(self) -> str:
        """The work and its targets, in words."""
        return self.words.format(*(side.source.target for side in self.files))

    @property
    def is_remote(self) -> bool:
        """Whether the files of a side are not on this machine, so that each read waits for the network."""
        return any(side.source.local is None for side in self.files)

    @property
    def remote_jobs(self) -> int:
        """How many units are read at a time if they are not on this machine."""
        return self.remote_units if self.is_remote else 0

    def find_common_nodes(self, first: Iterable[str], second: Iterable[str]) -> frozenset[str]:
        """Return the nodes of a cluster on whose disks the files of both sides lie, or without any the nodes of one side.

        Empty where any node can read them.
        """
        ours, theirs = (
            find_nodes(side.source, *files) for side, files in zip(self.files, (first, second), strict=True)
        )
        return (ours & theirs) or ours or theirs

    def list_objects(self) -> dict[str, str]:
        """Map each file of both sides, ``A: name`` and ``B: name``, to a state that changes when it is replaced."""
        return {
            f"{label}: {name}": describe_version(side.source, name)
            for label, side in zip("AB", self.files, strict=True)
            for name in side.source.files
        }


def _without(values: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*values[:axis], *values[axis + 1 :])
