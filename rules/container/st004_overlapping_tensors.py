"""Two tensors of a safetensors file overlap.

## What it checks
No tensor begins before the end of the one before it in the file.

## Why it matters
safetensors refuses the file (`invalid offset for tensor`): every byte belongs to one tensor. Readers that check each tensor
by itself accept the file, and one of the two tensors gets the other's values. Writers create such files to store tied weights
once; the right way is to omit one of the names and set `tie_word_embeddings` in the config.

## How to fix
Write the file again with safetensors' `save_file` (or `save_model`, which leaves out shared tensors).

## When it can be wrong
A writer and a reader of the same project may share bytes between tied tensors on purpose; safetensors, and everything built
on it, still refuses the file. The rule cannot say to which of the two tensors the bytes belong. Two copies of a tensor at two
positions do not overlap.

## Seen in
huggingface/safetensors#586, ohdearquant/lattice#752
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "ST004",
    "overlapping-tensors",
    severity="error",
    when=lambda ckpt: ckpt.has_shards,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("overlap"):
        yield replace(problem, hint="write the file again with safetensors' save_file")
    ckpt.require_headers()
