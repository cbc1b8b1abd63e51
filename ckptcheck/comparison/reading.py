"""Reads rectangles of files into memory that is used again, so that reading runs at the speed of a copy.

Files are read and not mapped: one that shrinks, or whose disk fails, is then an error to report and no signal that kills.
"""

from __future__ import annotations

import os
import threading
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ckptcheck.bridge.area import Area

if TYPE_CHECKING:
    from pathlib import Path

WASTE = 8
"""A rectangle is read in one go where that reads at most so many times its bytes, else line by line."""


class Unreadable(Exception):
    """A file that could not be read to the end; file and reason."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file = file
        self.reason = reason


class Readable(Protocol):
    """What bytes are read from; `ckptcheck.checkpoint.source.Source` is one."""

    @property
    def local(self) -> Path | None:
        """Where the files lie on disk, None if they do not."""
        ...

    def read(self, name: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes from `start`."""
        ...


class Files:
    """The files of one side, each opened once. Use as a context manager."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._descriptors: dict[str, int] = {}
        self._before: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def changed(self) -> list[str]:
        """Return the files that were written to since they were opened."""
        return [file for file, was in self._before.items() if _state(self._descriptors[file]) != was]

    def fill(self, file: str, offset: int, buffer: NDArray[np.uint8]) -> None:
        """Fill a buffer with the bytes from `offset`. Raises Unreadable."""
        try:
            if self._source.local is None or not hasattr(os, "preadv"):
                raw = self._source.read(file, offset, buffer.size)
                buffer[: len(raw)] = np.frombuffer(raw, np.uint8)
                done = len(raw)
            else:
                descriptor, done = self._open(self._source.local, file), 0
                while done < buffer.size:
                    more = os.preadv(descriptor, [buffer[done:]], offset + done)  # type: ignore[list-item]
                    if more == 0:
                        break
                    done += more
        except OSError as error:
            raise Unreadable(file, error.strerror or str(error)) from error
        if done < buffer.size:
            raise Unreadable(file, "it ends earlier than its header says")

    def box(
        self, file: str, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
    ) -> NDArray[Any]:
        """Return a rectangle as unsigned integers of `itemsize` bytes (a power of two up to 8). Raises Unreadable."""
        kind = np.dtype(f"<u{itemsize}")
        span = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True)) + itemsize
        useful = prod(shape) * itemsize
        if span <= WASTE * useful:
            raw = np.empty(span, np.uint8)
            self.fill(file, offset, raw)
            return np.ndarray(shape, kind, raw.data, 0, strides)
        slowest = max(range(len(shape)), key=lambda axis: strides[axis])
        rest, steps = _without(shape, slowest), _without(strides, slowest)
        lines = [
            self.box(file, offset + number * strides[slowest], rest, steps, itemsize)
            for number in range(shape[slowest])
        ]
        return np.stack(lines, axis=slowest)

    def whole(self, area: Area) -> NDArray[Any]:
        """Return a tensor that may lie in several pieces, as unsigned integers. Raises Unreadable."""
        if len(area.chunks) == 1 and area.chunks[0].shape == area.shape:
            chunk = area.chunks[0]
            return self.box(chunk.file, chunk.offset, area.shape, chunk.strides, area.itemsize)
        result = np.zeros(area.shape, f"<u{area.itemsize}")
        for chunk in area.chunks:
            place = tuple(slice(low, low + length) for low, length in zip(chunk.origin, chunk.shape, strict=True))
            result[place] = self.box(chunk.file, chunk.offset, chunk.shape, chunk.strides, area.itemsize)
        return result

    def _open(self, folder: Path, file: str) -> int:
        with self._lock:
            if file not in self._descriptors:
                descriptor = os.open(folder / file, os.O_RDONLY)
                self._descriptors[file] = descriptor
                self._before[file] = _state(descriptor)
            return self._descriptors[file]


def _state(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns


def _without(values: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*values[:axis], *values[axis + 1 :])
