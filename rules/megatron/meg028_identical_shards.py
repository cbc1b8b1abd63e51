"""Chunks of a weight hold the same bytes.

## What it checks
No two chunks of a matrix, of the same size, hold the same bytes, except where every element is the same. Chunks are what
tensor-parallel ranks, and the halves of gated layers, hold.

## Why it matters
A rank whose weights were gathered wrongly, or written twice, leaves a copy where its own part belongs: sizes and names are
right, and half of the matrix is gone.

## How to fix
Save again from the run; compare with an earlier iteration.

## When it can be wrong
Weights that were made by repeating rows, such as key-value heads copied to a larger number of ranks. `--ignore MEG028`
silences it.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1871 (every rank's part written over one tensor), vllm-project/vllm#53537
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.copies import beginning, is_constant, same
from ckptcheck.checkpoint.megatron.reading import Located
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.phrase import few


@rule(
    "MEG028",
    "identical-shards",
    severity="warning",
    on="megatron",
    when=lambda run: run.form != "empty" and bool(run.weights),
)
def check(run: Megatron) -> Iterator[Problem]:
    found: dict[str, list[tuple[str, int, int]]] = {}
    for name, placed in run.inspection.located.items():
        groups: dict[tuple[tuple[int, ...], bytes], list[Located]] = {}
        for chunk, place in placed:
            if len(placed) > 1 and len(chunk.sizes) > 1 and chunk.elements >= 16:
                groups.setdefault((chunk.sizes, beginning(run, place)), []).append(place)
        for group in groups.values():
            twins = [place for place in group[1:] if not is_constant(run, place) and same(run, group[0], place)]
            if twins:
                found.setdefault(twins[0].name, []).append((name, len(twins) + 1, len(placed)))
    for file, weights in found.items():
        name, alike, number = weights[0]
        many = f"of {len(weights)} weights, chunks hold the same bytes ({few({name for name, _, _ in weights})})"
        yield Problem(
            (f"{alike} of its {number} chunks hold the same bytes" if len(weights) == 1 else many)
            + ", as a rank leaves them that was written twice",
            file=file,
            key=name,
            hint="save again from the run",
        )
