"""Writes archives as torch.save does, and tensors in pickles, without torch."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable

import numpy as np

from tests.factories import dcp
from tests.factories.dcp import Call, Global, Raw, write_pickle


def write_archive(records: dict[str, bytes], *, method: int = zipfile.ZIP_STORED, crc: bool = True) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as written:
        for name, raw in records.items():
            written.writestr(f"archive/{name}", raw)
    raw = bytearray(out.getvalue())
    if not crc:
        at = 0
        while (at := raw.find(b"PK\x01\x02", at)) >= 0:
            raw[at + 16 : at + 20] = bytes(4)
            at += 4
    return bytes(raw)


def open_bytes(raw: bytes) -> tuple[Callable[[int, int], bytes], int]:
    """Return what reads a range of the bytes, and their number."""
    return lambda start, length: raw[start : start + length], len(raw)


def write_tensor_pickle(storage: str, shape: tuple[int, ...], stride: tuple[int, ...], skip: int = 0) -> bytes:
    total = int(np.prod(shape))
    persistent = Raw(dcp.write_opcodes(("storage", Global("torch", storage), "0", "cpu", total)) + b"Q")
    arguments = (persistent, skip, tuple(shape), tuple(stride), False, Call(Global("collections", "OrderedDict")))
    return write_pickle(Call(Global("torch._utils", "_rebuild_tensor_v2"), arguments))
