"""Rows of padding are empty.

## What it checks
The untrained rows of EMB001 that no token has, because the vocabulary is padded to a multiple, and that of the padding token.

## Why it matters
It does not, and this says that it was looked at: whoever resizes the embedding or adds tokens gets these rows first.

## How to fix
Nothing. Initialise the rows before you give them tokens.

## Seen in
huggingface/transformers#4875, NVIDIA-NeMo/Megatron-Bridge#5375
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count
from ckptcheck.values.untrained import untrained


@rule("EMB003", "empty-padding-row", severity="info", when=lambda ckpt: ckpt.anatomy.embedding is not None)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for matrix in untrained(ckpt):
        if matrix.padding:
            yield Problem(
                f"{count(len(matrix.padding), 'row of padding is', 'rows of padding are')} empty: {matrix.listed(matrix.padding)}",
                file=ckpt.holders[matrix.name],
                key=matrix.name,
                hint="nothing to do, unless you give these rows tokens",
            )
