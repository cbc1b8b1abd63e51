"""Ranks disagree about a weight that each of them holds whole.

## What it checks
What all tensor-parallel ranks of a legacy checkpoint hold whole (norms, routers), and what stands on several stages (a tied
embedding), has the same bytes everywhere. torch_dist stores one copy, so nothing can be said of it.

## Why it matters
The ranks have drifted apart while they trained: gradients of norms that were not reduced, random states that differ. Which
copy a converter takes is chance.

## How to fix
Find the step at which they part; check that the gradients of replicated weights are reduced (sequence parallelism).

## When it can be wrong
Biases of routers that each rank updates for itself. `--ignore MEG029` silences it.

## Seen in
NVIDIA/Megatron-LM#1584 (offsets of stages), reports of norms that drift under sequence parallelism
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.megatron.copies import same
from ckptcheck.checkpoint.megatron.reading import locate
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.torch_archive import UnreadableArchive
from ckptcheck.phrase import count


@rule(
    "MEG029",
    "unequal-copies",
    severity="warning",
    on="megatron",
    when=lambda run: run.form == "legacy" and bool(run.copies),
)
def check(run: Megatron) -> Iterator[Problem]:
    if not run.reads_values:
        raise Skip(run.no_values)
    for name, chunks in run.copies.items():
        dtype = run.tensors[name].dtype
        try:
            found = [
                locate(run.source, chunk, dtype, run.item_folder, run.archive(chunk.item))
                for chunk in chunks
                if chunk.item
            ]
        except (UnreadableArchive, OSError):
            continue  # MEG014 and MEG026 say so
        other = [place for place in found[1:] if not same(run, found[0], place)]
        if other:
            yield Problem(
                f"{len(found)} ranks hold it whole, and {count(len(other), 'copy differs', 'copies differ')} from the first",
                file=other[0].name,
                key=name,
                hint="check that the gradients of replicated weights are reduced",
            )
