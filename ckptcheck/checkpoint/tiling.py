"""Checks that the tensors of a safetensors file tile its data without gap or overlap, as safetensors requires."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from operator import attrgetter, le

from ckptcheck.checkpoint.document import Defect, clip
from ckptcheck.checkpoint.tensor import BITS, Tensor
from ckptcheck.text.formatting import count, format_shape

MAX_SIZE = 2**64
"""Largest size, in bytes, that is computed; no offset in a header reaches it, so larger sizes need no distinction."""


def layout_defects(tensors: dict[str, Tensor], data_start: int, size: int) -> list[Defect]:
    """Check that the tensors tile the data, bytes `data_start` to `size` of the file, and that each fits its shape.

    Follows `Metadata::validate` of safetensors 0.8, which requires that the tensors, sorted by offsets, touch each other.
    """
    defects: list[Defect] = []
    available = size - data_start
    sizes: dict[tuple[str, tuple[int, ...]], int | None] = {}
    # position: where the last tensor ends; expected: where it would end if its entry were correct
    position, expected, before = 0, 0, ""
    for name, tensor in _sort(tensors):
        begin, end = tensor.data_offsets
        key = tensor.dtype, tensor.shape
        try:
            nbytes = sizes[key]
        except KeyError:
            nbytes = sizes[key] = _nbytes(*key)
        if begin == position and end - begin == nbytes:
            position = expected = end
        else:
            defect, expected = _misfit(name, tensor, nbytes, (position, expected), before)
            defects += [defect] if defect else []
            position = max(position, begin, end) if defect else end
        before = name
    if min(position, expected) > available:
        missing = count(min(position, expected) - available, "byte")
        cut = [name for name, tensor in tensors.items() if tensor.data_offsets[1] > available]
        first = min(cut, key=lambda name: tensors[name].data_offsets, default=before)
        text = f"the file ends {missing} too early, and cuts off {count(len(cut), 'tensor')} from {clip(first)} on"
        defects.append(Defect("truncated", text, names=tuple(cut)))
    elif position < available and not defects:
        extra = count(available - position, "byte")
        where = "the last tensor" if tensors else "a header that lists no tensor"
        defects.append(Defect("trailing-bytes", f"{extra} follow {where} and belong to none"))
    if data_start % 8:
        defects.append(Defect("misaligned-data", f"the data begins at byte {data_start:,}, which is no multiple of 8"))
    elif not defects and any(nbytes and nbytes % 8 for nbytes in sizes.values()):
        defects += _misaligned(tensors, data_start)
    return defects


def find_unfit(tensors: dict[str, Tensor], available: int) -> dict[str, str]:
    """Return tensor → why its values cannot be read, for tensors whose bytes are not those of their dtype and shape.

    The tensors that remain lie within the `available` bytes of data, and no two of them share a byte.
    """
    unfit = {}
    position = 0
    for name, tensor in _sort(tensors):
        begin, end = tensor.data_offsets
        if end - begin != _nbytes(tensor.dtype, tensor.shape):
            unfit[name] = "its bytes are not those of its dtype and shape"
        elif end > available:
            unfit[name] = "its file ends before it"
        elif begin < position:
            unfit[name] = "it shares bytes with another tensor"
        else:
            position = end
    return unfit


def _misaligned(tensors: dict[str, Tensor], data_start: int) -> Iterator[Defect]:
    """Find tensors that do not begin at a multiple of their element size, as may happen after a tensor of odd length."""
    for name, tensor in tensors.items():
        width = max(BITS[tensor.dtype] // 8, 1)
        if tensor.data_offsets[0] % width and tensor.nbytes:
            begin = data_start + tensor.data_offsets[0]
            text = f"it begins at byte {begin:,} of the file, no multiple of the {width} bytes of {tensor.dtype}"
            yield Defect("misaligned-data", text, name)


def _misfit(
    name: str, tensor: Tensor, nbytes: int | None, previous_ends: tuple[int, int], before: str
) -> tuple[Defect | None, int]:
    """Describe the defect of a tensor that has the wrong place or length; return it and where the tensor should end.

    previous_ends: where the previous tensor ends, and where it should end; a tensor may begin at either.
    """
    begin, end = tensor.data_offsets
    start = begin if begin in previous_ends else previous_ends[0]
    expected_end = end if nbytes is None or end < begin else start + nbytes
    if end < begin:
        kind, text = "malformed-entry", f"its data would end at byte {end:,}, before it begins at {begin:,}"
    elif nbytes is None:
        kind, text = _unsized(tensor)
    elif nbytes != end - begin:
        kind, text = "size-mismatch", f"its data takes {end - begin:,} bytes, but {_typed(tensor)} needs {nbytes:,}"
    elif start == begin:
        return None, end
    elif begin > start:
        where = f"between tensors {clip(before)} and {clip(name)}" if before else f"before tensor {clip(name)}"
        kind, text = (
            "hole",
            f"{count(begin - start, 'byte')} {where} {'belongs' if begin - start == 1 else 'belong'} to no tensor",
        )
    else:
        kind, text = (
            "overlap",
            f"it overlaps {clip(before)}: it begins at byte {begin:,}, before the end of {clip(before)}",
        )
    return Defect(kind, text, name), expected_end


def _sort(tensors: dict[str, Tensor]) -> Iterable[tuple[str, Tensor]]:
    """Return the tensors in the order of their data; writers list them so."""
    offsets = list(map(attrgetter("data_offsets"), tensors.values()))
    if all(map(le, offsets, islice(offsets, 1, None))):
        return tensors.items()
    return sorted(tensors.items(), key=lambda item: item[1].data_offsets)


def _nbytes(dtype: str, dimensions: tuple[int, ...]) -> int | None:
    """Return the bytes of a tensor; None if they cannot be computed, for the reasons that `_unsized` gives."""
    bits = _bits(dtype, dimensions)
    return bits // 8 if bits is not None and bits < MAX_SIZE and bits % 8 == 0 else None


def _bits(dtype: str, dimensions: tuple[int, ...]) -> int | None:
    """Return the bits of a tensor, multiplied in the order of safetensors; 2^64 on overflow, None if unknown."""
    total = 1
    for dimension in dimensions:
        total *= dimension
        if total >= MAX_SIZE:
            return MAX_SIZE
    return total * BITS[dtype] if dtype in BITS else None


def _unsized(tensor: Tensor) -> tuple[str, str]:
    bits = _bits(tensor.dtype, tensor.shape)
    if bits is None:
        return "unknown-dtype", f"safetensors knows no dtype {clip(repr(tensor.dtype))}"
    if bits >= MAX_SIZE:
        return "shape-overflow", f"{_typed(tensor)} has more bits than a 64-bit number can count"
    return "size-mismatch", f"{_typed(tensor)} does not fill a whole number of bytes"


def _typed(tensor: Tensor) -> str:
    rest = f" and {len(tensor.shape) - 8:,} more dimensions" if len(tensor.shape) > 8 else ""
    return f"{clip(tensor.dtype)} {format_shape(tensor.shape[:8])}{rest}"
