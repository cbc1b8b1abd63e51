"""Matrices that repeat a half: the whole, each expert of a stack, and the members that a fused matrix joins.

A column-parallel merge that takes one rank twice repeats the outputs of a layer, a row-parallel one its inputs. Where
several projections share a tensor it repeats each for itself: [gate 0; gate 0; up 0; up 0].
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from ckptcheck.bridge.area import Area, Chunk, LayoutError
from ckptcheck.bridge.geometry import Geometry
from ckptcheck.bridge.layouts import Cut, glu, glu_transposed, qkv, qkv_plain, transposed
from ckptcheck.checkpoint.layout import BOX
from ckptcheck.phrase import listed
from ckptcheck.values.compare import FIRST, STEP, read, same_pieces

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

PAIRS = (
    (re.compile(r"(gate_up|gate_up_proj|gate_and_up_proj|up_gate_proj|linear_fc1|w13|w12|dense_h_to_4h|experts\.fc1|input_linear|Wi)$"),
     ("gate", "up")),
    (re.compile(r"mixer\.in_proj$"), ("x", "z")),
)  # fmt: skip
"""What two members of equal size are joined in: feed-forward blocks of transformers, engines and Megatron; Mamba."""
QKV = re.compile(r"(qkv|qkv_proj|Wqkv|query_key_value|linear_qkv|c_attn|att(n|ention)\.in_proj)$")
EXPERTS = 16
"""Experts of a stack that are looked at, spread evenly: a rank that was taken twice shows in all, or in those of a rank."""


def repeated_half(ckpt: Checkpoint, name: str) -> str | None:
    """Say of what a matrix holds its first half twice: ``rows``, ``columns``, ``gate and up rows``; None where of nothing.

    Of keys and values within a fused matrix nothing is said: heads may be repeated to serve them on more ranks. Sound
    matrices cost a few reads of 64 bytes. Raises OSError where reading fails, Skip where the file has shrunk.
    """
    tensor = ckpt.tensors[name]
    shape, itemsize = tensor.shape, tensor.nbytes // prod(tensor.shape)
    shard = ckpt.holders[name]
    if len(shape) == 3 and (".experts." in f".{name}" or shape[0] == ckpt.anatomy.experts):
        number, size = shape[0], tensor.nbytes // shape[0]
        found = set()
        for expert in sorted({index * number // min(number, EXPERTS) for index in range(min(number, EXPERTS))}):
            area = Area.whole(tensor.dtype, itemsize, shape[1:], shard, expert * size)
            found.add(_of_matrix(ckpt, name, area, area))
        kinds = sorted(kind for kind in found if kind)
        if kinds or ".experts." in f".{name}":  # whose experts are compared by VAL009
            return f"{kinds[0]} per expert" if kinds else None
    rows = Area.whole(tensor.dtype, itemsize, (shape[0], prod(shape[1:])), shard, 0)
    columns = Area.whole(tensor.dtype, itemsize, (prod(shape[:-1]), shape[-1]), shard, 0)
    return _of_matrix(ckpt, name, rows, columns)


def _of_matrix(ckpt: Checkpoint, name: str, rows: Area, columns: Area) -> str | None:
    """As `repeated_half`, of one matrix; that of more than two dimensions is given with its rows, and with its columns, whole."""
    if _twice(ckpt, name, rows):
        return "rows"
    if columns.shape[1] * columns.itemsize >= 64 and _twice(ckpt, name, columns.transposed()):
        return "columns"
    for names, members in _members(ckpt, name, rows):
        kinds = [kind for kind, member in zip(names, members, strict=False) if _twice(ckpt, name, member)]
        if kinds:
            return f"{listed(kinds)} rows"
    return None


def _members(ckpt: Checkpoint, name: str, area: Area) -> Iterator[tuple[tuple[str, ...], list[Area]]]:
    """Yield the members that may lie in a matrix, outputs first, with their names; nothing where its name tells of none."""
    plain = BOX.sub("", name).removesuffix("weight").rstrip("._")
    tries: list[tuple[tuple[str, ...], Cut, Geometry]] = []
    for pattern, pair in PAIRS:
        if pattern.search(plain):
            tries += [(pair, glu, Geometry()), (pair, glu_transposed, Geometry())]
    if QKV.search(plain):
        for found in _attention(ckpt, *area.shape):
            tries += [(("query",), qkv_plain, found), (("query",), qkv, found)]
        if area.shape[1] == 3 * area.shape[0]:  # GPT-2 stores inputs before outputs
            tries.append((("query",), _thirds, Geometry()))
    for names, cut, geometry in tries:
        try:
            yield names, cut(area, geometry)
        except LayoutError:
            continue


def _thirds(area: Area, geometry: Geometry) -> list[Area]:
    """All queries, keys and values, stored with inputs before outputs."""
    (plain,) = transposed(area, geometry)
    return qkv_plain(plain, Geometry(heads=1, groups=1, head_dim=plain.shape[0] // 3))


def _attention(ckpt: Checkpoint, rows: int, columns: int) -> Iterator[Geometry]:
    """Yield what heads and groups a matrix may hold: the model's, or those of a tensor-parallel rank; as many keys as queries."""
    model = Geometry.of_args(ckpt.args) if ckpt.args else Geometry.of_config(ckpt.config)
    if model.heads and model.head_dim:
        groups, rest = divmod(rows - model.heads * model.head_dim, 2 * model.head_dim)
        if groups > 0 and not rest and model.heads % groups == 0:  # Falcon calls the number of groups otherwise
            yield replace(model, groups=groups)
        if model.groups and model.heads % model.groups == 0 and groups != model.groups:
            each = model.heads // model.groups
            groups, rest = divmod(rows, (each + 2) * model.head_dim)
            if not rest:
                yield replace(model, heads=each * groups, groups=groups)
    if rows == 3 * columns:
        yield Geometry(heads=1, groups=1, head_dim=columns)


def _twice(ckpt: Checkpoint, name: str, area: Area) -> bool:
    """Whether the second half of the rows holds the bytes of the first, and they are not one number."""
    half, rest = divmod(area.shape[0], 2)
    if rest or not half or not _begins_twice(ckpt, name, area, half):
        return False
    firsts, seconds = area.cut(0, 0, half).chunks, area.cut(0, half, 2 * half).chunks
    if [chunk.shape for chunk in firsts] != [chunk.shape for chunk in seconds]:
        return False
    if any(min(chunk.strides) != area.itemsize for chunk in firsts):
        return False  # every second column, say: it lies in single elements
    pairs = list(zip(firsts, seconds, strict=True))
    return all(
        same_pieces(ckpt, (name, begin), (name, begin + second.offset - first.offset), length)
        for first, second in pairs
        for begin, length in _runs(first, area.itemsize)
    ) and not all(
        _is_constant(ckpt, name, begin, length, area.itemsize)
        for first in firsts
        for begin, length in _runs(first, area.itemsize)
    )


def _begins_twice(ckpt: Checkpoint, name: str, area: Area, half: int) -> bool:
    """Whether the halves of an area that is one rectangle begin alike: what nearly all do not, at the price of two reads."""
    if len(area.chunks) > 1 or area.itemsize not in area.chunks[0].strides:
        return True
    (chunk,) = area.chunks
    along = half if chunk.strides[0] == area.itemsize else area.shape[1]
    length = min(FIRST, along * area.itemsize)
    return read(ckpt, name, chunk.offset, length) == read(ckpt, name, chunk.offset + half * chunk.strides[0], length)


def _runs(chunk: Chunk, itemsize: int) -> Iterator[tuple[int, int]]:
    """Yield begin and length in bytes of the pieces in which a rectangle lies in its file."""
    (_, inner), (stride, number) = sorted(zip(chunk.strides, chunk.shape, strict=True))
    if stride == inner * itemsize:
        yield chunk.offset, stride * number
    else:
        yield from ((chunk.offset + index * stride, inner * itemsize) for index in range(number))


def _is_constant(ckpt: Checkpoint, name: str, begin: int, length: int, itemsize: int) -> bool:
    """Whether a piece (of a large one its first part) is one element again and again."""
    raw = read(ckpt, name, begin, min(length, STEP))
    return raw == raw[:itemsize] * (len(raw) // itemsize)
