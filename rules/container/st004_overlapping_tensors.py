"""Two tensors of a safetensors file lay claim to the same bytes.

## What it checks
No tensor begins before the end of the one before it in the file.

## Why it matters
safetensors refuses the file (`invalid offset for tensor`): every byte has one owner. Readers that check each tensor
by itself take it, and one of the two gets the other's values. Writers make such files to store tied weights once;
that is what leaving one of the names out, and `tie_word_embeddings` in the config, are for.

## How to fix
Write the file anew with safetensors' `save_file` (or `save_model`, which leaves out shared tensors).

## When it can be wrong
A writer and a reader of one project may share bytes between tied tensors on purpose, and agree about it; safetensors,
and all that builds on it, refuses the file. Which of the two tensors the bytes were meant for cannot be told. Two
copies of a tensor at two places are no overlap.

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
        yield replace(problem, hint="write the file anew with safetensors' save_file")
    ckpt.require_headers()
