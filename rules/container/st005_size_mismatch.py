"""A tensor has more or fewer bytes than its dtype and shape need.

## What it checks
For every tensor, the length of its data is the product of its shape times the size of its dtype, and a whole number of bytes
(4- and 6-bit floats need not be).

## Why it matters
safetensors refuses the file (`invalid shape, data type, or offset for tensor`). Readers that trust the shape read past the
tensor, into its neighbour or beyond the file; mlx did until 2026.

## How to fix
The header was edited or written by hand: correct the dtype or shape, or write the file again with `save_file`.

## When it can be wrong
It never fires on a file that safetensors reads. It checks lengths only: F16 in place of BF16, I8 in place of F8_E4M3, and
swapped dimensions take as many bytes as the right ones. CFG013, CFG014 and CFG015 check some of the shapes, VAL006 some of
the values.

## Seen in
ml-explore/mlx#3363, anthony-chaudhary/fak#12603
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "ST005",
    "size-mismatch",
    severity="error",
    when=lambda ckpt: ckpt.has_shards,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("size-mismatch"):
        yield replace(
            problem, hint="correct the tensor's dtype, shape or offsets, or write the file again with save_file"
        )
    ckpt.require_headers()
