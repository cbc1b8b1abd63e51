"""One thing to explain, with both its sides as matrices of patterns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.diagnosis.bits import Bits
from ckptcheck.diagnosis.layouts import by_group
from ckptcheck.diagnosis.rounding import ROUNDED, encode
from ckptcheck.diagnosis.sides import Key, Side, Sides
from ckptcheck.values.dtypes import decode


@dataclass(frozen=True, eq=False)
class Unit:
    """expected, actual: patterns [rows, columns] of the same shape and dtype (that of what was found).

    sizes: the rows of each member (q, k, v or gate, up); one number where there is nothing to take apart.
    flat: it is a vector. cast: the dtype that was expected, where another one was found.
    member: which of the key's members this is, None for the whole.
    """

    key: Key
    dtype: str
    expected: NDArray[Any]
    actual: NDArray[Any]
    sizes: tuple[int, ...]
    sides: Sides
    flat: bool = False
    cast: str | None = None
    interleaved: bool = False
    member: int | None = None

    @property
    def part(self) -> str:
        """What it is: a key of PARTS."""
        if self.member is None:
            return self.key.part
        return ("q", "k", "v")[self.member] if self.key.part == "qkv" else ("gate", "up")[self.member]

    @property
    def numeric(self) -> bool:
        """Whether each element is a number of the model."""
        return self.dtype in ROUNDED

    def members(self) -> list[Unit]:
        """Its parts, each by itself; empty where it is one already."""
        if len(self.sizes) < 2 or self.member is not None:
            return []
        ends = np.cumsum(self.sizes)
        units = []
        for number, (size, end) in enumerate(zip(self.sizes, ends, strict=True)):
            rows = slice(end - size, end)
            part = replace(self, expected=self.expected[rows], actual=self.actual[rows], sizes=(size,), member=number)
            if len(self.key.names) > 1:
                part = replace(part, key=self.key.single(self.key.names[number]), member=None)
            units.append(part)
        return units

    def source(self, side: Side, layer: int | None, expert: int | None) -> NDArray[Any] | None:
        """The same thing in another layer or expert, or in the previous version; None where it has another shape."""
        key = self.key.elsewhere(layer, expert)
        parts = [self.sides.read(side, name) for name in key.names]
        if any(part is None for part in parts):
            return None
        matrix = matrix_of([part for part in parts if part is not None], key, self.sides, self.dtype)
        if matrix is None:
            return None
        if self.member is not None:
            whole = sizes_of(key, self.sides, len(matrix))
            if len(whole) < 2:
                return None
            end = sum(whole[: self.member + 1])
            matrix = matrix[end - whole[self.member] : end]
        return matrix if matrix.shape == self.actual.shape else None


def unit_of(key: Key, sides: Sides) -> Unit | None:
    """Read both sides; None where they have no elements, or differ in shape or in a dtype that cannot be cast."""
    expected = [sides.read("expected", name) for name in key.names]
    actual = [sides.read("actual", name) for name in key.names]
    if any(part is None or not part.patterns.size for part in (*expected, *actual)):
        return None
    left, right = [[part for part in side if part is not None] for side in (expected, actual)]
    dtype, meant = right[0].dtype, left[0].dtype
    if any(part.dtype != dtype for part in right) or any(part.dtype != meant for part in left):
        return None
    if any(a.shape != b.shape for a, b in zip(left, right, strict=True)) or (
        len({(part.patterns.ndim, part.shape[1:]) for part in left}) > 1
    ):
        return None
    wanted, found = matrix_of(left, key, sides, dtype), matrix_of(right, key, sides, dtype)
    if wanted is None or found is None:
        return None
    sizes = tuple(part.shape[0] for part in left) if len(left) > 1 else sizes_of(key, sides, len(found))
    return Unit(
        key, dtype, wanted, found, sizes, sides,
        flat=left[0].patterns.ndim < 2,
        cast=meant if meant != dtype else None,
        interleaved=sides.is_interleaved(key) and len(sizes) > 1,
    )  # fmt: skip


def sizes_of(key: Key, sides: Sides, rows: int) -> tuple[int, ...]:
    """The rows of the members of one fused tensor of so many rows, as far as the geometry tells."""
    if key.part == "gate_up" and rows % 2 == 0:
        return (rows // 2, rows // 2)
    geometry = sides.geometry
    if key.part == "qkv" and geometry.heads and geometry.kv_heads:
        width, rest = divmod(rows, geometry.heads + 2 * geometry.kv_heads)
        if not rest and geometry.heads % geometry.kv_heads == 0:
            return (geometry.heads * width, geometry.kv_heads * width, geometry.kv_heads * width)
    return (rows,)


def matrix_of(parts: list[Bits], key: Key, sides: Sides, dtype: str) -> NDArray[Any] | None:
    """Put the members on top of each other, cast to a dtype; Q, K and V in plain order. None where that is impossible."""
    matrices = []
    for part in parts:
        bits = part
        if key.expert is not None:
            if bits.patterns.ndim < 2 or key.expert >= bits.shape[0]:
                return None
            bits = Bits(bits.dtype, bits.patterns[key.expert])
            if _lies_down(key, sides):
                bits = Bits(bits.dtype, bits.patterns.T)
        matrix = bits.matrix
        if bits.dtype != dtype:
            if bits.dtype not in ROUNDED or dtype not in ROUNDED:
                return None
            matrix = encode(dtype, decode(bits.dtype, matrix)).reshape(matrix.shape)
        matrices.append(matrix)
    if len({matrix.shape[1] for matrix in matrices}) > 1:
        return None
    whole = matrices[0] if len(matrices) == 1 else np.concatenate(matrices)
    if sides.is_interleaved(key):
        sizes = sizes_of(key, sides, len(whole))
        if len(sizes) == 3 and sides.geometry.kv_heads:
            whole = whole[np.argsort(by_group(sizes, sides.geometry.kv_heads))]
    return whole


def _lies_down(key: Key, sides: Sides) -> bool:
    """Whether stacked experts hold gate and up side by side in the columns ([experts, hidden, 2 x width], gpt-oss)."""
    name = key.names[0]
    if key.part != "gate_up":
        return False
    down = sides.read("expected", name.replace("gate_up_proj", "down_proj"))
    ours = sides.read("expected", name)
    if down is None or ours is None or down.patterns.ndim != 3 or ours.patterns.ndim != 3:
        return False
    return ours.shape[1] != 2 * down.shape[2] and ours.shape[2] == 2 * down.shape[1]
