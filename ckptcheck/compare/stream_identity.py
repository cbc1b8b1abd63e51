"""Computes the identity of a set in the same pass over its bytes as the digests of a manifest.

The manifest reads every stored tensor as a stream of bytes. This module maps the bytes of each stream to their plain
tensor, so that its shard digest comes from blocks that are read anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.tensor import Chunk, GlobalTensor, itemsize
from ckptcheck.checkpoint.torch_archive import UnreadableArchive
from ckptcheck.compare.bridge.tensor_layout import FileChunk, TensorLayout, packed_strides
from ckptcheck.compare.identity import IdentityPlan, plan_identity
from ckptcheck.compare.matching.megatron_side import build_megatron_side
from ckptcheck.compare.matching.side import build_checkpoint_side
from ckptcheck.values.tensor_part import TensorPart
from ckptcheck.values.tensor_stream import list_rank_tensors

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class StreamPlan:
    """The plain tensors of a set, and where their elements lie in the streams of its stored tensors."""

    identity: IdentityPlan
    # Stream → the parts of it that belong to plain tensors. The streams have the names of `values.tensor_stream`.
    parts: Mapping[str, list[TensorPart]] = field(repr=False)


def plan_stream_identity(ckpt: Checkpoint | Megatron, reference: Checkpoint | Megatron | None = None) -> StreamPlan:
    """Map the bytes of each stream to their plain tensor. Raises EvidenceError as `plan_identity` does."""
    if isinstance(ckpt, Megatron):
        side = build_megatron_side(ckpt, _find_in_ranks(ckpt) if ckpt.form == "legacy" else _find_in_stream)
    else:
        side = build_checkpoint_side(ckpt)
        whole = {
            name: TensorLayout.contiguous(each.dtype, each.itemsize, each.shape, name, 0)
            for name, each in side.stored.items()
        }
        side = replace(side, stored=whole)
    plan = plan_identity(side, reference)
    parts: dict[str, list[TensorPart]] = {}
    for name, layout in plan.layouts.items():
        for chunk in layout.chunks:
            parts.setdefault(chunk.file, []).append(
                TensorPart(name, layout.shape, layout.itemsize, chunk.origin, chunk.shape, chunk.offset, chunk.strides)
            )
    return StreamPlan(plan, parts)


def _find_in_stream(run: Megatron, name: str, tensor: GlobalTensor) -> TensorLayout:
    """Return a weight as the whole of its stream."""
    return TensorLayout.contiguous(tensor.dtype, itemsize(tensor.dtype), tensor.shape, name, 0)


def _find_in_ranks(run: Megatron) -> Callable[[Megatron, str, GlobalTensor], TensorLayout]:
    """Return a function that finds a weight's chunks in a legacy checkpoint, whose streams are tensors of ranks."""
    streams: dict[tuple[str, str], list[tuple[str, Chunk]]] = {}
    for name, tensor in list_rank_tensors(run):
        (chunk,) = tensor.chunks
        streams.setdefault(_place(chunk), []).append((name, chunk))

    def find(run: Megatron, name: str, tensor: GlobalTensor) -> TensorLayout:
        size, chunks = itemsize(tensor.dtype), []
        for chunk in tensor.chunks:
            stream, begin = next(
                (
                    (stream, chunk.skip - held.skip)
                    for stream, held in streams.get(_place(chunk), ())
                    if held.skip <= chunk.skip and chunk.skip + chunk.elements <= held.skip + held.elements
                ),
                ("", 0),
            )
            if not stream:
                raise UnreadableArchive("no rank holds it")
            strides = packed_strides(chunk.sizes, size) if chunk.sizes else ()
            chunks.append(FileChunk(chunk.offsets, chunk.sizes, stream, begin * size, strides))
        return TensorLayout(tensor.dtype, size, tensor.shape, tuple(chunks))

    return find


def _place(chunk: Chunk) -> tuple[str, str]:
    return (chunk.item.file if chunk.item is not None else ""), chunk.record
