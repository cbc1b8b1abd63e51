"""A critic still has its output layer.

## What it checks
Beside a value head there is no `output_layer.weight` with more than one row.

## Why it matters
A critic replaces the output layer. One that is left takes vocabulary × hidden elements on every rank and in every save,
gets no gradient, and tells converters that this is a language model.

## How to fix
Set `output_layer` to None where the value head is made.

## When it can be wrong
A model that is policy and critic in one needs both. `--ignore MEG031`, or a reason under `[ignore]`, silences it.

## Seen in
The design of ROLL's Megatron critic (`output_layer = None` on the last stage)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.structure import OUTPUT, VALUE_HEADS
from ckptcheck.phrase import shape


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
            f"there is a value head, and the output layer {shape(head.shape)} is there too",
            file=run.place,
            key=OUTPUT,
            hint="set output_layer to None where the value head is made",
        )
