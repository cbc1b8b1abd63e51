"""Finds matrices whose second half repeats the first: whole matrices, stacked experts, and members of fused matrices.

A column-parallel merge that takes one rank twice repeats the outputs of a layer; a row-parallel merge repeats its inputs.
Where several projections share a tensor, the merge repeats each of them: [gate 0; gate 0; up 0; up 0].
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from msgspec import structs

from ckptcheck.checkpoint.layout import BOX
from ckptcheck.compare.bridge.model_dimensions import ModelDimensions
from ckptcheck.compare.bridge.splitters import (
    SplitFunction,
    split_glu,
    split_glu_transposed,
    split_qkv_interleaved,
    split_qkv_stacked,
    split_transposed,
)
from ckptcheck.compare.bridge.tensor_layout import FileChunk, LayoutError, TensorLayout
from ckptcheck.text.formatting import join_words
from ckptcheck.values.detectors.byte_compare import PREFIX_BYTES, STEP_BYTES, have_equal_bytes, read_tensor_bytes
from ckptcheck.values.detectors.roles import name_pattern

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

PAIRS = (
    (re.compile(r"(gate_up|gate_up_proj|gate_and_up_proj|up_gate_proj|linear_fc1|w13|w12|dense_h_to_4h|experts\.fc1|input_linear|Wi)$"),
     ("gate", "up")),
    (re.compile(r"mixer\.in_proj$"), ("x", "z")),
)  # fmt: skip
"""Tensors that fuse two members of equal size: feed-forward blocks of transformers, engines and Megatron; Mamba."""
QKV = re.compile(r"(qkv|qkv_proj|Wqkv|query_key_value|linear_qkv|c_attn|att(n|ention)\.in_proj)$")
EXPERTS = 16
"""Experts of a stack that are examined, spread evenly: a rank taken twice shows in all experts, or in all of one rank."""


def is_fused_attention(name: str) -> bool:
    """Whether a tensor may join queries, keys and values: halves of its queries lie where no first look goes."""
    return _kind_is_fused(name_pattern(name))


@lru_cache(1 << 14)
def _kind_is_fused(kind: str) -> bool:
    return QKV.search(_plain_name(kind)) is not None


def find_repeated_half(ckpt: Checkpoint, name: str) -> str | None:
    """Return what a matrix holds twice: ``rows``, ``columns``, ``gate and up rows``; None if it repeats nothing.

    Keys and values within a fused matrix are not examined: their heads may be repeated to serve them on more ranks. Sound
    matrices cost a few reads of 64 bytes. Raises OSError if reading fails, Skip if the file has shrunk.
    """
    tensor = ckpt.tensors[name]
    shape, itemsize = tensor.shape, tensor.nbytes // prod(tensor.shape)
    shard = ckpt.tensor_to_file[name]
    if len(shape) == 3 and (".experts." in f".{name}" or shape[0] == ckpt.components.num_experts):
        number, size = shape[0], tensor.nbytes // shape[0]
        repetitions = set()
        for expert in sorted({index * number // min(number, EXPERTS) for index in range(min(number, EXPERTS))}):
            layout = TensorLayout.contiguous(tensor.dtype, itemsize, shape[1:], shard, expert * size)
            repetitions.add(_find_in_matrix(ckpt, name, layout, layout))
        kinds = sorted(kind for kind in repetitions if kind)
        # VAL009 compares the experts of these tensors.
        if kinds or ".experts." in f".{name}":
            return f"{kinds[0]} per expert" if kinds else None
    rows = TensorLayout.contiguous(tensor.dtype, itemsize, (shape[0], prod(shape[1:])), shard, 0)
    columns = TensorLayout.contiguous(tensor.dtype, itemsize, (prod(shape[:-1]), shape[-1]), shard, 0)
    return _find_in_matrix(ckpt, name, rows, columns)


def _find_in_matrix(ckpt: Checkpoint, name: str, rows: TensorLayout, columns: TensorLayout) -> str | None:
    """Like `find_repeated_half`, for one matrix. The caller flattens other tensors to rows, and to columns."""
    if _repeats_first_half(ckpt, name, rows):
        return "rows"
    if columns.shape[1] * columns.itemsize >= 64 and _repeats_first_half(ckpt, name, columns.transpose()):
        return "columns"
    for names, members in _iterate_members(ckpt, name, rows):
        kinds = [kind for kind, member in zip(names, members, strict=False) if _repeats_first_half(ckpt, name, member)]
        if kinds:
            return f"{join_words(kinds)} rows"
    return None


def _iterate_members(
    ckpt: Checkpoint, name: str, layout: TensorLayout
) -> Iterator[tuple[tuple[str, ...], list[TensorLayout]]]:
    """Yield the names and layouts of the members that a fused matrix may have, as [outputs, inputs]; nothing for other names."""
    plain = _plain_name(name)
    tries: list[tuple[tuple[str, ...], SplitFunction, ModelDimensions]] = []
    for pattern, pair in PAIRS:
        if pattern.search(plain):
            tries += [(pair, split_glu, ModelDimensions()), (pair, split_glu_transposed, ModelDimensions())]
    if QKV.search(plain):
        for attention in _guess_attention(ckpt, *layout.shape):
            tries += [(("query",), split_qkv_stacked, attention), (("query",), split_qkv_interleaved, attention)]
        # GPT-2 stores [inputs, outputs].
        if layout.shape[1] == 3 * layout.shape[0]:
            tries.append((("query",), _split_thirds, ModelDimensions()))
    for names, cut, dimensions in tries:
        try:
            yield names, cut(layout, dimensions)
        except LayoutError:
            continue


def _plain_name(name: str) -> str:
    return BOX.sub("", name).removesuffix("weight").rstrip("._")


def _split_thirds(layout: TensorLayout, dimensions: ModelDimensions) -> list[TensorLayout]:
    """Split [queries; keys; values] of a matrix stored as [inputs, outputs]."""
    (plain,) = split_transposed(layout, dimensions)
    return split_qkv_stacked(plain, ModelDimensions(heads=1, kv_heads=1, head_dim=plain.shape[0] // 3))


def _guess_attention(ckpt: Checkpoint, rows: int, columns: int) -> Iterator[ModelDimensions]:
    """Yield the heads and key-value heads that a matrix may hold.

    They are the model's, those of a tensor-parallel rank, and one key per query.
    """
    model = ModelDimensions.from_megatron_args(ckpt.args) if ckpt.args else ModelDimensions.from_config(ckpt.config)
    if model.heads and model.head_dim:
        groups, rest = divmod(rows - model.heads * model.head_dim, 2 * model.head_dim)
        # Falcon's config has another key for the number of key-value heads.
        if groups > 0 and not rest and model.heads % groups == 0:
            yield structs.replace(model, kv_heads=groups)
        if model.kv_heads and model.heads % model.kv_heads == 0 and groups != model.kv_heads:
            each = model.heads // model.kv_heads
            groups, rest = divmod(rows, (each + 2) * model.head_dim)
            if not rest:
                yield structs.replace(model, heads=each * groups, kv_heads=groups)
    if rows == 3 * columns:
        yield ModelDimensions(heads=1, kv_heads=1, head_dim=columns)


def _repeats_first_half(ckpt: Checkpoint, name: str, layout: TensorLayout) -> bool:
    """Whether the second half of the rows repeats the bytes of the first, and these are not one constant."""
    half, rest = divmod(layout.shape[0], 2)
    if rest or not half or not _begins_alike(ckpt, name, layout, half):
        return False
    firsts, seconds = layout.cut(0, 0, half).chunks, layout.cut(0, half, 2 * half).chunks
    if [chunk.shape for chunk in firsts] != [chunk.shape for chunk in seconds]:
        return False
    # Every second column, for example, lies in single elements.
    if any(min(chunk.strides) != layout.itemsize for chunk in firsts):
        return False
    pairs = list(zip(firsts, seconds, strict=True))
    return all(
        have_equal_bytes(ckpt, (name, begin), (name, begin + second.offset - first.offset), length)
        for first, second in pairs
        for begin, length in _runs(first, layout.itemsize)
    ) and not all(
        _is_constant(ckpt, name, begin, length, layout.itemsize)
        for first in firsts
        for begin, length in _runs(first, layout.itemsize)
    )


def _begins_alike(ckpt: Checkpoint, name: str, layout: TensorLayout, half: int) -> bool:
    """Whether both halves of a single rectangle begin with the same bytes. Two reads rule out nearly every sound matrix."""
    if len(layout.chunks) > 1 or layout.itemsize not in layout.chunks[0].strides:
        return True
    (chunk,) = layout.chunks
    along = half if chunk.strides[0] == layout.itemsize else layout.shape[1]
    length = min(PREFIX_BYTES, along * layout.itemsize)
    return read_tensor_bytes(ckpt, name, chunk.offset, length) == read_tensor_bytes(
        ckpt, name, chunk.offset + half * chunk.strides[0], length
    )


def _runs(chunk: FileChunk, itemsize: int) -> Iterator[tuple[int, int]]:
    """Yield offset and length in bytes of the contiguous pieces of a rectangle in its file."""
    (_, inner), (stride, number) = sorted(zip(chunk.strides, chunk.shape, strict=True))
    if stride == inner * itemsize:
        yield chunk.offset, stride * number
    else:
        yield from ((chunk.offset + index * stride, inner * itemsize) for index in range(number))


def _is_constant(ckpt: Checkpoint, name: str, begin: int, length: int, itemsize: int) -> bool:
    """Whether a piece repeats one element; of a large piece only the beginning is read."""
    raw = read_tensor_bytes(ckpt, name, begin, min(length, STEP_BYTES))
    return raw == raw[:itemsize] * (len(raw) // itemsize)
