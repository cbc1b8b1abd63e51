"""The value head of a critic has another shape than it must have.

## What it checks
A value head (`value_head.weight`, `v_head.summary.weight`) is `[1, hidden_size]`, and holds something.

## Why it matters
Loaders stop at the shape, or reshape it. `[8, hidden/8]` is a head that was saved in its tensor-parallel layout: as many
elements, in the wrong places. An empty head is what a sharded optimizer leaves where parameters were not gathered.

## How to fix
Gather the head before it is saved; it is not cut by tensor parallelism.

## When it can be wrong
A critic with several values per token. `--ignore MEG030` silences it.

## Seen in
Open-Reasoner-Zero#63
"""

from collections.abc import Iterator
from math import prod

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.structure import EMBEDDING, VALUE_HEADS, promised
from ckptcheck.phrase import shape


@rule(
    "MEG030",
    "value-head-shape",
    severity="error",
    on="megatron",
    when=lambda run: any(name.endswith(VALUE_HEADS) for name in run.weights),
)
def check(run: Megatron) -> Iterator[Problem]:
    embedding = run.weights.get(EMBEDDING)
    hidden = promised(run.args, "hidden_size") or (
        embedding.shape[1] if embedding and len(embedding.shape) == 2 else None
    )
    for name, head in run.weights.items():
        if not name.endswith(VALUE_HEADS) or hidden is None or head.shape == (1, hidden):
            continue
        if 0 in head.shape:
            text = f"the head is empty ({shape(head.shape)}): its parameters were not gathered"
        else:
            layout = "; it was saved in a tensor-parallel layout" if prod(head.shape) == hidden else ""
            text = f"the head is {shape(head.shape)}; a value head is {shape((1, hidden))}{layout}"
        yield Problem(text, file=run.place, key=name, hint="gather the head before it is saved")
