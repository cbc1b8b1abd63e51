"""Part of the vocabulary repeats the rows of another part.

## What it checks
- No quarter or eighth of the rows of the embedding, or of a separate head, repeats another one row by row, as 4 or 8
  vocabulary-parallel ranks would hold it. VAL010 compares halves.
- Every row is compared by its first 8 bytes and the largest of its first 64 numbers, sixteen of them byte by byte.
- Parts whose rows are mostly one and the same (zero, reserved) are left out, and so are Megatron runs (MEG028 checks them).

## Why it matters
A merge of vocabulary-parallel ranks that took one rank twice leaves this. The shape is right, and thousands of tokens read and
score as others do. The rows of the missing rank are lost.

## How to fix
Merge again from all tensor-parallel ranks.

## When it can be wrong
- A table of several codebooks (audio) may have started all of them from one and never trained them.
- It does not report copied rows outside such an order: sound models have some that their training data never held.
- `--ignore EMB007`, or a reason under `[ignore]`, silences it.

## Seen in
verl-project/verl#7610 (replicated buffers concatenated over ranks)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.values.detectors.duplicate_rank_shards import find_duplicate_rank_shards


@rule("EMB007", "repeated-rank", severity="error", when=lambda ckpt: bool(ckpt.vocabulary_tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for name in ckpt.vocabulary_tensors:
        for shard in find_duplicate_rank_shards(ckpt, name):
            number, size = ckpt.tensors[name].shape[0], shard.rows
            # VAL010 reports halves.
            if 2 * size == number:
                continue
            yield Problem(
                f"rows {shard.second:,}-{shard.second + size - 1:,} of {number:,} repeat rows {shard.first:,}-"
                f"{shard.first + size - 1:,}: one vocabulary-parallel rank seems to be merged twice",
                file=ckpt.tensor_to_file[name],
                key=name,
                hint="merge again from all tensor-parallel ranks",
            )
