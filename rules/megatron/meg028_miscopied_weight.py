"""Ranks hold copies of one part of a weight, or different copies of a replicated one.

## What it checks
- No two chunks of a weight matrix with the same size hold the same bytes, unless all their elements are equal. A chunk is
  what a tensor-parallel rank, or one half of a gated layer, holds. Stacked experts are compared expert by expert. Tables of a
  state-space model such as `A_log` are left out, because they start with equal rows.
- In a legacy checkpoint, weights that every tensor-parallel rank holds completely (norms, routers), or that several stages hold
  (a tied embedding), have the same bytes everywhere (a warning). torch_dist stores a single copy.

## Why it matters
- Weights that were gathered wrongly or written twice leave a copy in the place of a rank's own part. Sizes and names are right,
  Megatron resumes and every export loads, but half of the matrix is lost. VAL010 reports the same in an exported checkpoint.
- Where copies differ, the ranks drifted apart during training: gradients of norms were not reduced, or random states differ. It is
  arbitrary which copy a converter takes.

## How to fix
Save again from the run, and compare with an earlier iteration. Find the step at which copies diverge, and check that gradients of
replicated weights are reduced (sequence parallelism).

## When it can be wrong
Weights may repeat rows by construction: separate key-value heads copied to a larger number of ranks, or a layer widened by
copying its neurons, before further training. Keys and values within `linear_qkv` are stored with queries, which differ. Router
biases may be updated by each rank for itself. `--ignore MEG028`, or a reason under `[ignore]`, silences it.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1871 (every rank's part written over one tensor), vllm-project/vllm#53537; NVIDIA/Megatron-LM#1584
(offsets of stages), reports of norms that drift under sequence parallelism
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.tensor_reader import (
    ChunkLocation,
    is_constant,
    is_same_bytes,
    locate_chunk,
    read_first_bytes,
)
from ckptcheck.checkpoint.torch_archive import UnreadableArchive
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "MEG028",
    "miscopied-weight",
    severity="error",
    on="megatron",
    when=lambda run: run.form != "empty" and bool(run.weights),
)
def check(run: Megatron) -> Iterator[Problem]:
    yield from _find_identical(run)
    if run.form == "legacy":
        yield from _find_unequal(run)


def _find_identical(run: Megatron) -> Iterator[Problem]:
    repeated: list[tuple[str, str, int, int]] = []
    for name, locations in run.inspection.located.items():
        groups: dict[tuple[tuple[int, ...], tuple[int, ...], bytes], list[ChunkLocation]] = {}
        for chunk, place in locations if name.endswith(("weight", "proj")) else ():
            if len(locations) > 1 and len(chunk.sizes) > 1 and chunk.elements >= 16:
                groups.setdefault((chunk.sizes, chunk.offsets[:-2], read_first_bytes(run.source, place)), []).append(
                    place
                )
        for group in groups.values():
            duplicates = [
                place
                for place in group[1:]
                if not is_constant(run.source, place) and is_same_bytes(run.source, group[0], place)
            ]
            if duplicates:
                repeated.append((name, duplicates[0].name, len(duplicates) + 1, len(locations)))
    if not repeated:
        return
    name, file, duplicate_count, total = repeated[0]
    weights, files = {name for name, *_ in repeated}, {file for _, file, *_ in repeated}
    where = f" in {count(len(files), 'file')}" if len(files) > 1 else ""
    many = f"chunks of {len(weights)} weights{where} hold the same bytes as another chunk ({join_truncated(weights)})"
    yield Problem(
        (many if len(weights) > 1 else f"{duplicate_count} of its {total} chunks hold the same bytes")
        + ", as if one rank had been written twice",
        file=file,
        key=name,
        hint="copy the files again, each from its own rank; if they are the same there, save again or use an earlier iteration",
    )


def _find_unequal(run: Megatron) -> Iterator[Problem]:
    for name, chunks in run.copies.items():
        dtype = run.tensors[name].dtype
        try:
            locations = [
                locate_chunk(run.source, chunk, dtype, run.item_folder, run.archive(chunk.item))
                for chunk in chunks
                if chunk.item
            ]
        except (UnreadableArchive, OSError):
            continue  # MEG014 and MEG003 report it
        other = [place for place in locations[1:] if not is_same_bytes(run.source, locations[0], place)]
        if other:
            yield Problem(
                f"{len(locations)} ranks hold a complete copy, "
                f"and {count(len(other), 'copy differs', 'copies differ')} from the first",
                file=other[0].name,
                key=name,
                hint="check that the gradients of replicated weights are reduced",
                severity="warning",
            )
