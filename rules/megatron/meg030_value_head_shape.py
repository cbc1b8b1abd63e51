"""The value head of a critic has the wrong shape.

## What it checks
A value head (`value_head.weight`, `v_head.summary.weight`) has the shape `[1, hidden_size]`.

## Why it matters
Loaders stop at the shape, or reshape it. `[hidden, 1]` is a transposed head: a Linear stores [outputs, inputs].
`[8, hidden/8]` is a head that was saved in its tensor-parallel layout: the right number of elements in the wrong positions. A
sharded optimizer that did not gather its parameters leaves an empty head.

## How to fix
Gather the head before saving it. Tensor parallelism does not split it.

## When it can be wrong
A critic may have several values per token. `--ignore MEG030` silences it.

## Seen in
Open-Reasoner-Zero#63
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.heads import explain_head_shape
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.structure import EMBEDDING, VALUE_HEADS, positive_argument
from ckptcheck.text.formatting import format_shape


@rule(
    "MEG030",
    "value-head-shape",
    severity="error",
    on="megatron",
    when=lambda run: any(name.endswith(VALUE_HEADS) for name in run.weights),
)
def check(run: Megatron) -> Iterator[Problem]:
    embedding = run.weights.get(EMBEDDING)
    hidden = positive_argument(run.args, "hidden_size") or (
        embedding.shape[1] if embedding and len(embedding.shape) == 2 else None
    )
    for name, head in run.weights.items():
        if not name.endswith(VALUE_HEADS) or hidden is None or head.shape == (1, hidden):
            continue
        if 0 in head.shape:
            text, layout = f"the head is empty ({format_shape(head.shape)}): its parameters were not gathered", None
        else:
            layout = explain_head_shape(head.shape, (1, hidden))
            text = f"the shape of the head is {format_shape(head.shape)}, not {format_shape((1, hidden))}"
        yield Problem(
            f"{text}; {layout.text}" if layout else text,
            file=run.finding_file,
            key=head.key,
            hint=layout.hint if layout else "gather the head before saving it",
        )
