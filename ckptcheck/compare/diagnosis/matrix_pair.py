"""The expected and the actual tensor of a key, as matrices of bit patterns."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from ckptcheck.compare.diagnosis.inputs import DiagnosisInput, SourceName, TensorBits, TensorKey
from ckptcheck.compare.diagnosis.matrix_view import order_by_group
from ckptcheck.compare.matching.cast import ROUNDED, encode
from ckptcheck.values.dtypes import decode

SIDES: tuple[SourceName, SourceName] = ("expected", "actual")


class MatrixPair(msgspec.Struct, frozen=True, eq=False):
    """Two matrices of equal shape and dtype whose difference is explained."""

    key: TensorKey
    # The dtype of the actual tensor.
    dtype: str
    # Bit patterns [rows, columns].
    expected: NDArray[Any]
    actual: NDArray[Any]
    # Rows of each member (q, k, v or gate, up); one number if there are no members.
    member_rows: tuple[int, ...]
    input: DiagnosisInput
    is_vector: bool = False
    # The expected dtype, if the actual one differs.
    cast_from: str | None = None
    is_interleaved: bool = False
    # Index of the member of the key; None for the whole.
    member: int | None = None

    @property
    def part(self) -> str:
        """A key of PART_PATTERNS."""
        if self.member is None:
            return self.key.part
        return ("q", "k", "v")[self.member] if self.key.part == "qkv" else ("gate", "up")[self.member]

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.dtype in ROUNDED

    def split_members(self) -> list[MatrixPair]:
        """Return a pair for each member; empty if it has no members."""
        if len(self.member_rows) < 2 or self.member is not None:
            return []
        ends = np.cumsum(self.member_rows)
        units = []
        for number, (size, end) in enumerate(zip(self.member_rows, ends, strict=True)):
            rows = slice(end - size, end)
            part = structs.replace(
                self, expected=self.expected[rows], actual=self.actual[rows], member_rows=(size,), member=number
            )
            if len(self.key.names) > 1:
                part = structs.replace(part, key=self.key.for_member(self.key.names[number]), member=None)
            units.append(part)
        return units

    def read_sibling(self, side: SourceName, layer: int | None, expert: int | None) -> NDArray[Any] | None:
        """Read the same matrix in another layer or expert, or of the previous version; None if its shape differs."""
        key = self.key.at(layer, expert)
        parts = self.input.read_all(side, key.names)
        matrix = build_matrix(parts, key, self.input, self.dtype) if parts is not None else None
        if matrix is None:
            return None
        if self.member is not None:
            whole = member_row_counts(key, self.input, len(matrix))
            if len(whole) < 2:
                return None
            end = sum(whole[: self.member + 1])
            matrix = matrix[end - whole[self.member] : end]
        return matrix if matrix.shape == self.actual.shape else None


def read_matrix_pair(key: TensorKey, sides: DiagnosisInput) -> MatrixPair | None:
    """Read both sides; None if they are empty, differ in shape, or have dtypes that cannot be cast."""
    expected, actual = (sides.read_all(side, key.names) for side in SIDES)
    if expected is None or actual is None or not all(part.patterns.size for part in (*expected, *actual)):
        return None
    dtype, expected_dtype = actual[0].dtype, expected[0].dtype
    if {part.dtype for part in actual} != {dtype} or {part.dtype for part in expected} != {expected_dtype}:
        return None
    forms = {(part.patterns.ndim, part.shape[1:]) for part in expected}
    if [part.shape for part in expected] != [part.shape for part in actual] or len(forms) > 1:
        return None
    matrices = [
        matrix for parts in (expected, actual) if (matrix := build_matrix(parts, key, sides, dtype)) is not None
    ]
    if len(matrices) < 2:
        return None
    sizes = tuple(part.shape[0] for part in expected) if len(expected) > 1 else ()
    sizes = sizes or member_row_counts(key, sides, len(matrices[1]))
    return MatrixPair(
        key, dtype, matrices[0], matrices[1], sizes, sides,
        is_vector=expected[0].patterns.ndim < 2,
        cast_from=expected_dtype if expected_dtype != dtype else None,
        is_interleaved=sides.is_interleaved(key) and len(sizes) > 1,
    )  # fmt: skip


def member_row_counts(key: TensorKey, sides: DiagnosisInput, rows: int) -> tuple[int, ...]:
    """Return the rows of the members of a fused tensor; a single number if the geometry does not say."""
    if key.part == "gate_up" and rows % 2 == 0:
        return (rows // 2, rows // 2)
    geometry = sides.geometry
    if key.part == "qkv" and geometry.heads and geometry.kv_heads:
        width, rest = divmod(rows, geometry.heads + 2 * geometry.kv_heads)
        if not rest and geometry.heads % geometry.kv_heads == 0:
            return (geometry.heads * width, geometry.kv_heads * width, geometry.kv_heads * width)
    return (rows,)


def build_matrix(parts: list[TensorBits], key: TensorKey, sides: DiagnosisInput, dtype: str) -> NDArray[Any] | None:
    """Concatenate the members, cast to a dtype, with Q, K and V in plain order; None if that is impossible."""
    matrices = []
    for part in parts:
        bits = part
        if key.expert is not None:
            if bits.patterns.ndim < 2 or key.expert >= bits.shape[0]:
                return None
            bits = TensorBits(bits.dtype, bits.patterns[key.expert])
            if _lies_down(key, sides):
                bits = TensorBits(bits.dtype, bits.patterns.T)
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
        sizes = member_row_counts(key, sides, len(whole))
        if len(sizes) == 3 and sides.geometry.kv_heads:
            whole = whole[np.argsort(order_by_group(sizes, sides.geometry.kv_heads))]
    return whole


def _lies_down(key: TensorKey, sides: DiagnosisInput) -> bool:
    """Whether stacked experts hold gate and up side by side in the columns ([experts, hidden, 2 x width], gpt-oss)."""
    name = key.names[0]
    if key.part != "gate_up":
        return False
    down = sides.read("expected", name.replace("gate_up_proj", "down_proj"))
    ours = sides.read("expected", name)
    if down is None or ours is None or down.patterns.ndim != 3 or ours.patterns.ndim != 3:
        return False
    return ours.shape[1] != 2 * down.shape[2] and ours.shape[2] == 2 * down.shape[1]
