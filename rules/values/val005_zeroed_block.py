"""A block of a tensor is zero, as a failed write leaves it.

## What it checks
Nowhere in the data is there a run of 1 KiB or more of zero bytes within matrices that are otherwise not zero, also across
the border of two tensors. Left out: embeddings and heads (whole rows may be unused), packed and integer tensors, matrices
that are zero as a whole (VAL003, VAL004), and padding rows at the end of a matrix.

## Why it matters
A disk that was full, an upload that lost a block or a tensor-parallel rank that was not gathered leaves zeros and no error:
sizes and headers are right.

## How to fix
Fetch or write the file again; compare hashes. Where exactly one half is zero, gather the tensor-parallel ranks.

## When it can be wrong
Structured pruning zeroes rows on purpose.

## Seen in
vllm-project/vllm#53537, paiml/aprender#2337
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count, few
from ckptcheck.values.blocks import zeroed


@rule("VAL005", "zeroed-block", severity="error", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for shard, blocks in zeroed(ckpt).items():
        first = blocks[0]
        names = list(dict.fromkeys(name for block in blocks for name in block.tensors))
        half = "; it is exactly one half, as a lost tensor-parallel rank leaves it" if first.half else ""
        more = f", and {count(len(blocks) - 1, 'more such block')}" if len(blocks) > 1 else ""
        yield Problem(
            f"{first.nbytes:,} bytes in a row are zero, from byte {first.begin:,} of the data, in {few(names)}{half}{more}",
            file=shard,
            key=first.tensors[0],
            hint="fetch or write the file again, and compare its hash with the original's",
        )
    ckpt.require_values()
