"""The chunks of a tensor leave a gap, overlap, lie outside of it, or lie nowhere.

## What it checks
- The chunks of every tensor of the model cover it without a gap.
- No two chunks of a tensor hold the same element.
- Every chunk lies within its tensor.
- `.metadata` names a file and a position in it for every chunk of a tensor, and for every run of bytes.

## Why it matters
- Megatron and torch.distributed.checkpoint load a checkpoint with gaps without an error and leave these elements uninitialized:
  random, or from the previous step. It happens if a rank did not save.
- Where chunks overlap, the loader's reading order decides which one wins, so the tensor is right on some ranks and wrong on others.
  It happens if ranks assumed different grids.
- A chunk beyond its tensor means that the size and the chunks come from different models or grids. Loaders fail, or write into
  another position.
- At a chunk without a place the loader stops with a KeyError.

A tool that merged two tables of contents leaves each of these.

## How to fix
Save again with all ranks, each with a grid position of its own, or use an earlier iteration.

## When it can be wrong
- MEG021 checks optimizer states, because some formats pad them.
- A writer that stores replicas with equal bytes on purpose does no harm; Megatron and torch.distributed.checkpoint store one.

## Seen in
verl-project/verl#2086 and KempnerInstitute/KempnerForge#202 (experts of one rank only); NVIDIA-NeMo/Megatron-Bridge#1716 (every
expert rank under the same numbers); faults injected into real checkpoints of megatron-core 0.16.1
"""

from collections.abc import Iterator
from math import prod

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.weights import is_weight
from ckptcheck.text.formatting import count, format_shape, join_truncated


@rule("MEG009", "untiled-tensor", severity="error", on="megatron", when=lambda run: run.form == "torch_dist")
def check(run: Megatron) -> Iterator[Problem]:
    yield from _find_gaps(run)
    yield from _find_overlaps(run)
    yield from _find_beyond(run)
    yield from _find_unplaced(run)
    if unexamined := [key for key, cover in run.tiling_gaps.items() if cover.unexamined and is_weight(key)]:
        raise Skip(f"too many chunks to look for gaps and overlaps: {join_truncated(unexamined)}")


def _find_gaps(run: Megatron) -> Iterator[Problem]:
    for key, cover in run.tiling_gaps.items():
        if cover.missing and is_weight(key):
            whole = prod(run.tensors[key].shape)
            yield Problem(
                f"no chunk holds {cover.missing:,} of {count(whole, 'element')}, the first at "
                f"{format_shape(cover.missing_at)}: "
                "loaders silently leave them uninitialized",
                file=run.file(".metadata"),
                key=key,
                hint="save again with all ranks, or use an earlier iteration",
            )


def _find_overlaps(run: Megatron) -> Iterator[Problem]:
    for key, cover in run.tiling_gaps.items():
        if cover.doubled:
            yield Problem(
                f"several chunks hold {count(cover.doubled, 'element')}, the first at {format_shape(cover.doubled_at)}",
                file=run.file(".metadata"),
                key=key,
                hint="save again, with a distinct grid position for every rank, or use an earlier iteration",
            )


def _find_beyond(run: Megatron) -> Iterator[Problem]:
    for key, cover in run.tiling_gaps.items():
        if cover.beyond is not None:
            chunk, whole = cover.beyond, run.tensors[key].shape
            yield Problem(
                f"a chunk at {format_shape(chunk.offsets)} of {format_shape(chunk.sizes)} extends beyond the "
                f"tensor, which is {format_shape(whole)}",
                file=run.file(".metadata"),
                key=key,
                hint="sizes and chunks come from different models or saves: save again, or use an earlier iteration",
            )


def _find_unplaced(run: Megatron) -> Iterator[Problem]:
    unplaced = {
        key: count(number, "chunk")
        for key, tensor in run.tensors.items()
        if (number := sum(chunk.item is None for chunk in tensor.chunks))
    }
    objects = run.contents.objects if run.contents is not None else {}
    unplaced |= {key: "its bytes" for key, item in objects.items() if item is None}
    if unplaced:
        key, what = next(iter(unplaced.items()))
        more = (
            f", nor where {count(len(unplaced) - 1, 'further key lies', 'further keys lie')}"
            if len(unplaced) > 1
            else ""
        )
        verb = "lies" if what == "1 chunk" else "lie"
        yield Problem(
            f"it does not say where {what} {verb}{more}",
            file=run.file(".metadata"),
            key=key,
            hint="copy .metadata again; if it is the same at its source, use an earlier iteration",
        )
