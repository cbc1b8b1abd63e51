"""Applies a change to the bytes of a tensor, and counts what it changes and what is wrong with it.

A number in a file never decides an allocation: positions and values come from spans whose bytes exist, and a frame is
decompressed to at most what the tensor can hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.checkpoint.deltas.delta import Change, Delta, Span
from ckptcheck.checkpoint.source import Source
from ckptcheck.checkpoint.tensor import BITS

FLOATS = {"BF16": ("<u2", 0x7F80, 0x7FFF), "F16": ("<u2", 0x7C00, 0x7FFF), "F32": ("<u4", 0x7F800000, 0x7FFFFFFF)}
"""dtype → its integer of the same width, the bits of infinity, and the bits without the sign: a NaN is beyond infinity."""
LONG_POSITIONS = 1 << 32
"""Bytes of the largest tensor whose every byte a position of `overwrite` can name."""
LONG_INDICES = 1 << 31
"""Elements of the largest tensor whose every element an index of verl can name."""
BLOCK = 1 << 21
"""Bytes that are decompressed at a time: few enough to stay in the CPU cache, and a multiple of every dtype's size."""
MAX_WINDOW = 1 << 23
"""Longest window that a frame may ask for, in bytes: that of zstd's levels up to 19. Each core has a reader that may fill one."""
READ = 1 << 20
"""Compressed bytes that are read at a time."""


class BrokenChange(Exception):
    """A change that cannot be applied. kind: ``damaged``, ``size``, ``index``, ``width``, ``package``."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


@dataclass
class Effect:
    """What the changes of one delta did to one tensor."""

    elements: int = 0
    """Elements that differ from before."""
    positions: int = 0
    """Positions that were named; 0 for `xor`."""
    repeated: int = 0
    """Positions that were named before, with the same value."""
    contradicted: int = 0
    """Positions that were named before, with another value."""
    nan: int = 0
    """Values that are NaN."""
    unequal: int = 0
    """Elements that differ from a change of `verify`."""


def apply_change(delta: Delta, change: Change, state: NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> Effect:
    """Apply a change to the bytes of a tensor, in place.

    state: the bytes of the tensor before it, in row-major order. dtype, shape: of the tensor, as its checkpoint says.
    Raises BrokenChange, after which some bytes may be changed, and OSError.
    """
    width = max(1, BITS.get(dtype, 8) // 8)
    if change.encoding in ("xor", "overwrite"):
        apply = _apply_xor if change.encoding == "xor" else _apply_overwrite
        return apply(delta, change.data, state, width)
    if change.dtype != dtype or change.shape != shape:
        raise BrokenChange(
            "size",
            f"the delta is for {change.dtype} {list(change.shape or ())}, and the tensor is {dtype} {list(shape)}",
        )
    values = _read_span(delta, change.data)
    if change.encoding == "indices":
        return _apply_indices(delta, change, values, state, dtype, width)
    if len(values) != len(state):
        raise BrokenChange("size", f"the delta has {len(values):,} bytes for a tensor of {len(state):,}")
    different = _count_elements(values ^ state, width)
    if change.encoding == "verify":
        return Effect(unequal=different)
    state[:] = values
    return Effect(elements=different, nan=_count_nan(values, dtype))


def _apply_xor(delta: Delta, span: Span, state: NDArray[np.uint8], width: int) -> Effect:
    effect, at = Effect(), 0
    for block in _decompress(delta, span, len(state)):
        if at + len(block) > len(state):
            raise BrokenChange("size", f"the change has more bytes than the {len(state):,} of the tensor")
        difference = np.frombuffer(block, np.uint8)
        state[at : at + len(block)] ^= difference
        effect.elements += _count_elements(difference, width)
        at += len(block)
    if at < len(state):
        raise BrokenChange("size", f"the change has {at:,} bytes, and the tensor {len(state):,}")
    return effect


def _apply_overwrite(delta: Delta, span: Span, state: NDArray[np.uint8], width: int) -> Effect:
    if len(state) > LONG_POSITIONS:
        raise BrokenChange(
            "width",
            f"the tensor has {len(state):,} bytes, and a position of 32 bits cannot name those after 4,294,967,296",
        )
    # At most a count, then for each byte of the tensor a position of four bytes and a value of one.
    raw = _join(_decompress(delta, span, 4 + 5 * len(state)), 4 + 5 * len(state))
    if len(raw) < 4:
        raise BrokenChange("damaged", f"it has {len(raw)} bytes, too few for a count")
    number = int(raw[:4].view("<u4")[0])
    if len(raw) != 4 + 5 * number:
        raise BrokenChange(
            "damaged", f"it announces {number:,} positions, which take {4 + 5 * number:,} bytes, and has {len(raw):,}"
        )
    positions = np.frombuffer(raw[4 : 4 + 4 * number].tobytes(), "<u4").astype(np.int64)
    return _overwrite(positions, raw[4 + 4 * number :], state, width)


def _apply_indices(
    delta: Delta, change: Change, values: NDArray[np.uint8], state: NDArray[np.uint8], dtype: str, width: int
) -> Effect:
    assert change.positions is not None
    elements = len(state) // width
    if elements > LONG_INDICES:
        raise BrokenChange(
            "width",
            f"the tensor has {elements:,} elements, and a signed index of 32 bits cannot name those after 2,147,483,648",
        )
    raw = _read_span(delta, change.positions)
    if len(raw) % 4 or len(raw) // 4 * width != len(values):
        raise BrokenChange("damaged", f"it has {len(raw):,} bytes of positions for {len(values) // width:,} values")
    positions = np.frombuffer(raw.tobytes(), "<i4").astype(np.int64)
    kind = np.dtype(f"<u{width}")
    effect = _overwrite(positions, np.frombuffer(values.tobytes(), kind), state.view(kind), 1)
    effect.nan = _count_nan(values, dtype)
    return effect


def _overwrite(positions: NDArray[np.int64], values: NDArray[Any], state: NDArray[Any], width: int) -> Effect:
    """Put values at positions. width: places of the state that are one element."""
    effect = Effect(positions=len(positions))
    if not len(positions):
        return effect
    low, high = int(positions.min()), int(positions.max())
    if low < 0 or high >= len(state):
        outside = int(((positions < 0) | (positions >= len(state))).sum())
        raise BrokenChange(
            "index",
            f"{outside:,} of its {len(positions):,} positions lie outside the tensor: {low if low < 0 else high:,} is none of its"
            f" {len(state):,} {'bytes' if state.dtype == np.uint8 and width > 1 else 'elements'}",
        )
    if not (np.diff(positions) > 0).all():
        order = np.argsort(positions, kind="stable")
        twice = np.diff(positions[order]) == 0
        contradicts = twice & (np.diff(values[order].astype(np.int64)) != 0)
        effect.contradicted = int(contradicts.sum())
        effect.repeated = int(twice.sum()) - effect.contradicted
    moved = np.zeros(len(state) // width + 1, bool)
    moved[positions[state[positions] != values] // width] = True
    state[positions] = values
    effect.elements = int(moved.sum())
    return effect


class _SpanFile:
    """A span of a file that a decompressor reads."""

    def __init__(self, source: Source, span: Span) -> None:
        self._source, self._span, self._at = source, span, 0

    def read(self, size: int = -1) -> bytes:
        take = min(READ if size < 0 else size, self._span.nbytes - self._at)
        raw = self._source.read(self._span.file, self._span.begin + self._at, take) if take > 0 else b""
        self._at += len(raw)
        return raw


def _decompress(delta: Delta, span: Span, most: int) -> Iterator[bytes]:
    """Yield the content of a zstd frame in blocks of BLOCK bytes, the last one shorter, up to `most` bytes and one more.

    The one byte more tells the caller that the frame holds too much.
    """
    try:
        import zstandard
    except ImportError as error:
        text = "to decompress it needs the package zstandard: pip install zstandard blake3"
        raise BrokenChange("package", text) from error
    left = most + 1
    try:
        reader = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).stream_reader(_SpanFile(delta.source, span))
        while left > 0 and (block := reader.read(min(BLOCK, left))):
            left -= len(block)
            yield block
    except zstandard.ZstdError as error:
        raise BrokenChange("damaged", f"it is not a complete zstd frame: {error}") from error


def _join(blocks: Iterator[bytes], most: int) -> NDArray[np.uint8]:
    parts, total = [], 0
    for block in blocks:
        total += len(block)
        if total > most:
            raise BrokenChange(
                "size", "the change has more bytes than a position and a value for each byte of the tensor"
            )
        parts.append(np.frombuffer(block, np.uint8))
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8)


def _read_span(delta: Delta, span: Span) -> NDArray[np.uint8]:
    raw = delta.source.read(span.file, span.begin, span.nbytes)
    if len(raw) < span.nbytes:
        raise BrokenChange("damaged", f"{span.file} ends within it")
    return np.frombuffer(raw, np.uint8)


def _count_elements(difference: NDArray[np.uint8], width: int) -> int:
    """Count the elements that are not zero."""
    if width > 1 and len(difference) % width == 0:
        return int(np.count_nonzero(difference.view(f"<u{width}")))
    return int(np.count_nonzero(difference))


def _count_nan(values: NDArray[np.uint8], dtype: str) -> int:
    if dtype not in FLOATS:
        return 0
    kind, infinity, magnitude = FLOATS[dtype]
    bits = np.frombuffer(values.tobytes(), kind)
    return int(np.count_nonzero((bits & magnitude) > infinity))
