"""A tensor of a whole model, and the places of its parts on disk."""

from __future__ import annotations

from math import prod

import msgspec

TORCH_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""torch's name → safetensors' name, which ckptcheck uses everywhere."""
STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
    "UntypedStorage": "U8",
}
"""Typed storages of a torch.save file → dtype. Newer dtypes are saved as untyped storages, counted in bytes."""
NUMPY = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}
"""dtype → numpy's, or an unsigned integer if numpy has none. Dtypes that are not listed have one byte per element."""


def numpy_dtype(dtype: str) -> str:
    """Return numpy's dtype for one of safetensors': patterns (`<u2`, `u1`) for BF16 and the floats of 8 bits."""
    return NUMPY.get(dtype, "u1")


def itemsize(dtype: str) -> int:
    """Bytes of an element."""
    return {"8": 8, "4": 4, "2": 2}.get(numpy_dtype(dtype)[-1], 1)


class Item(msgspec.Struct, frozen=True, gc=False):
    """A torch.save archive in a file of the checkpoint: its first byte and its length, in bytes.

    transformed: the writer transformed the bytes (compression), so ckptcheck cannot read them.
    """

    file: str
    begin: int
    length: int
    transformed: bool = False


class Chunk(msgspec.Struct, frozen=True):
    """A box of a tensor: its first element and its extent along each axis; elements lie in C order.

    item: the archive that holds it, None if the checkpoint names none. record: the record within the archive, empty for the
    only one. skip: elements of the record before the box. whole: elements that the archive holds by the table of contents, if
    the box is a part of that.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    item: Item | None
    record: str = ""
    skip: int = 0
    whole: int = 0

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return prod(self.sizes)


class GlobalTensor(msgspec.Struct, frozen=True):
    """A tensor of the whole model. dtype as safetensors names it; empty if the checkpoint names an unknown one."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return prod(self.shape) * itemsize(self.dtype)
