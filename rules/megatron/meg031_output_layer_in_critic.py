"""A critic still has its output layer.

## What it checks
A checkpoint with a value head has no `output_layer.weight` with more than one row.

## Why it matters
A critic replaces the output layer. A remaining one takes vocabulary × hidden elements on every rank and in every save, gets
no gradient, and makes converters treat the critic as a language model.

## How to fix
Set `output_layer` to None where the value head is created.

## When it can be wrong
A model that is both policy and critic needs both. `--ignore MEG031`, or a reason under `[ignore]`, silences it.

## Seen in
The design of ROLL's Megatron critic (`output_layer = None` on the last stage)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.structure import OUTPUT, VALUE_HEADS
from ckptcheck.text.formatting import format_shape


@rule(
    "MEG031",
    "output-layer-in-critic",
    severity="warning",
    on="megatron",
    when=lambda run: any(name.endswith(VALUE_HEADS) for name in run.weights),
)
def check(run: Megatron) -> Iterator[Problem]:
    head = run.weights.get(OUTPUT)
    if head is not None and len(head.shape) == 2 and head.shape[0] > 1:
        yield Problem(
            f"the critic has a value head, but also the output layer {format_shape(head.shape)}",
            file=run.finding_file,
            key=head.key,
            hint="set output_layer to None where the value head is created",
        )
