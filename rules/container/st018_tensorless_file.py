"""A safetensors file is whole and holds no tensor.

## What it checks
Every header lists at least one tensor.

## Why it matters
Such a file is legal, and loaders pass over it without a word: where the model's weights should be in it, they start
with random or uninitialised ones. A save that gathered nothing, on a rank that owns no part of the model or from an
empty state dict, leaves one.

## How to fix
Remove the file where nothing is meant to be in it; else look at the code that saved it.

## When it can be wrong
A shard may be empty by design, for example one for every rank where some ranks own nothing; and so may a file that
belongs to something else than the model. It is a warning for that. If weights are missing, CFG003, CFG005 or IDX002
say which.

## Seen in
huggingface/safetensors#466, huggingface/safetensors#601
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "ST018",
    "tensorless-file",
    severity="warning",
    when=lambda ckpt: ckpt.has_shards,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("no-tensors"):
        yield replace(problem, hint="remove the file, or save it again if tensors should be in it")
