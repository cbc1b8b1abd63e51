"""Part of the vocabulary has the rows of another part.

## What it checks
Of the embedding and of a head of its own no quarter or eighth of the rows is another one again, row by row, as 4 or 8
vocabulary-parallel ranks would hold it. Parts whose rows are mostly one and the same (zero, reserved) are left out; halves are
VAL010's. Every row is compared by its first 8 bytes and the largest of its first 64 numbers, sixteen of them byte by byte. Not of
a Megatron run: MEG028 looks at that.

## Why it matters
A merge of vocabulary-parallel ranks that took one rank twice leaves this: the shape is right, and thousands of tokens read and
score as others do. The rows of the rank that was left out are lost.

## How to fix
Merge again from all tensor-parallel ranks.

## When it can be wrong
In a table of several codebooks (audio) that were all started from one and never trained. Words that are copies without such an
order are not told: sound models have some that their training data never held. `--ignore EMB007`, or a reason under `[ignore]`,
silences it.

## Seen in
verl-project/verl#7610 (replicated buffers concatenated over ranks)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.values.ranks import held_twice


@rule("EMB007", "repeated-rank", severity="error", when=lambda ckpt: bool(ckpt.vocabularies))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for name in ckpt.vocabularies:
        for twice in held_twice(ckpt, name):
            number, size = ckpt.tensors[name].shape[0], twice.rows
            if 2 * size == number:
                continue  # VAL010
            yield Problem(
                f"rows {twice.second:,}-{twice.second + size - 1:,} of {number:,} are rows {twice.first:,}-"
                f"{twice.first + size - 1:,} again, as a vocabulary-parallel rank merged twice leaves them",
                file=ckpt.holders[name],
                key=name,
                hint="merge again from all tensor-parallel ranks",
            )
