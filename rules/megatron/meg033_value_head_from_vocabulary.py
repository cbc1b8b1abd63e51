"""The value head is a copy of the first row of the vocabulary.

## What it checks
The value head, or an output layer of one row, is not the first row of the output layer or of the embedding, byte for byte.

## Why it matters
A value head stored as `output_layer` loads from a language model's checkpoint without an error, because row counts may differ
there due to vocabulary padding: the head becomes the row of token 0. The critic's first values are that token's logits.

## How to fix
Give the head a name of its own (`value_head`), and allow only that name to be missing when loading a language model.

## When it can be wrong
It cannot happen by chance: the bytes of a whole row are equal. `--ignore MEG033` silences it.

## Seen in
A critic with its head in the output_layer slot, megatron-core 0.16.1, loaded from a language model
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.structure import EMBEDDING, OUTPUT, VALUE_HEADS


@rule(
    "MEG033",
    "value-head-from-vocabulary",
    severity="error",
    on="megatron",
    when=lambda run: any(
        name.endswith(VALUE_HEADS) or (name == OUTPUT and weight.shape[:1] == (1,))
        for name, weight in run.weights.items()
    ),
)
def check(run: Megatron) -> Iterator[Problem]:
    run.require_value_reader()
    heads = [
        name
        for name, weight in run.weights.items()
        if (name.endswith(VALUE_HEADS) or name == OUTPUT) and weight.shape[:1] == (1,) and len(weight.shape) == 2
    ]
    for name in heads:
        for other in (OUTPUT, EMBEDDING):
            table = run.weights.get(other)
            if table is None or other == name or len(table.shape) != 2 or table.shape[1] != run.weights[name].shape[1]:
                continue
            if table.dtype != run.weights[name].dtype or not table.shape[0]:
                continue
            row = run.read(other, [slice(0, 1)])
            if row.any() and row.tobytes() == run.read(name).tobytes():
                yield Problem(
                    f"it is row 0 of {table.key}, byte for byte: a language model was loaded into the place of the head",
                    file=run.finding_file,
                    key=run.weights[name].key,
                    hint="give the head a name of its own, and initialize it again",
                )
