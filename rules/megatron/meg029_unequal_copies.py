"""Ranks hold different copies of a replicated weight.

## What it checks
In a legacy checkpoint, weights that every tensor-parallel rank holds completely (norms, routers), or that several stages hold
(a tied embedding), have the same bytes everywhere. torch_dist stores a single copy, so the rule cannot compare there.

## Why it matters
The ranks drifted apart during training: gradients of norms were not reduced, or random states differ. It is arbitrary which
copy a converter takes.

## How to fix
Find the step at which they diverge, and check that gradients of replicated weights are reduced (sequence parallelism).

## When it can be wrong
Router biases that each rank updates by itself. `--ignore MEG029` silences it.

## Seen in
NVIDIA/Megatron-LM#1584 (offsets of stages), reports of norms that drift under sequence parallelism
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.tensor_reader import is_same_bytes, locate_chunk
from ckptcheck.checkpoint.torch_archive import UnreadableArchive
from ckptcheck.text.formatting import count


@rule(
    "MEG029",
    "unequal-copies",
    severity="warning",
    on="megatron",
    when=lambda run: run.form == "legacy" and bool(run.copies),
)
def check(run: Megatron) -> Iterator[Problem]:
    run.require_value_reader()
    for name, chunks in run.copies.items():
        dtype = run.tensors[name].dtype
        try:
            locations = [
                locate_chunk(run.source, chunk, dtype, run.item_folder, run.archive(chunk.item))
                for chunk in chunks
                if chunk.item
            ]
        except (UnreadableArchive, OSError):
            # MEG014 and MEG003 report it.
            continue
        other = [place for place in locations[1:] if not is_same_bytes(run.source, locations[0], place)]
        if other:
            yield Problem(
                f"{len(locations)} ranks hold a complete copy, "
                f"and {count(len(other), 'copy differs', 'copies differ')} from the first",
                file=other[0].name,
                key=name,
                hint="check that the gradients of replicated weights are reduced",
            )
