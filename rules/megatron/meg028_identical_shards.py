"""Chunks of a weight hold the same bytes.

## What it checks
No two chunks of a weight matrix, of the same size, hold the same bytes, except where every element is the same. Chunks are
what tensor-parallel ranks, and the halves of gated layers, hold. What ranks hold of experts in one tensor is compared expert
by expert. Tables of a state-space model such as `A_log` are left out, as they start with equal rows.

## Why it matters
A rank whose weights were gathered wrongly, or written twice, leaves a copy where its own part belongs: sizes and names are
right, Megatron resumes from it and every export of it loads, and half of the matrix is gone. In an exported checkpoint the
same is VAL010, and as grave.

## How to fix
Save again from the run; compare with an earlier iteration.

## When it can be wrong
Weights that were made by repeating rows: key-value heads with a matrix of their own, copied to a larger number of ranks, or a
layer widened by copying its neurons, before further training. Keys and values within `linear_qkv` lie with queries, which
differ. `--ignore MEG028`, or a reason under `[ignore]`, silences it.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1871 (every rank's part written over one tensor), vllm-project/vllm#53537
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.copies import beginning, is_constant, same
from ckptcheck.checkpoint.megatron.reading import Located
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.phrase import count, few


@rule(
    "MEG028",
    "identical-shards",
    severity="error",
    on="megatron",
    when=lambda run: run.form != "empty" and bool(run.weights),
)
def check(run: Megatron) -> Iterator[Problem]:
    found: list[tuple[str, str, int, int]] = []
    for name, placed in run.inspection.located.items():
        groups: dict[tuple[tuple[int, ...], tuple[int, ...], bytes], list[Located]] = {}
        for chunk, place in placed if name.endswith(("weight", "proj")) else ():
            if len(placed) > 1 and len(chunk.sizes) > 1 and chunk.elements >= 16:
                groups.setdefault((chunk.sizes, chunk.offsets[:-2], beginning(run, place)), []).append(place)
        for group in groups.values():
            twins = [place for place in group[1:] if not is_constant(run, place) and same(run, group[0], place)]
            if twins:
                found.append((name, twins[0].name, len(twins) + 1, len(placed)))
    if not found:
        return
    name, file, alike, number = found[0]
    weights, files = {name for name, *_ in found}, {file for _, file, *_ in found}
    where = f" in {count(len(files), 'file')}" if len(files) > 1 else ""
    many = f"of {len(weights)} weights, chunks{where} hold the same bytes as another ({few(weights)})"
    yield Problem(
        (many if len(weights) > 1 else f"{alike} of its {number} chunks hold the same bytes")
        + ", as a rank leaves them that was written twice",
        file=file,
        key=name,
        hint="save again from the run",
    )
