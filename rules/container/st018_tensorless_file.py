"""A safetensors file is complete but holds no tensor.

## What it checks
Every header lists at least one tensor.

## Why it matters
Such a file is legal, and loaders silently skip it. If it should hold weights of the model, these stay random or
uninitialized. A save that gathered nothing leaves such a file: on a rank that owns no part of the model, or from an empty
state dict.

## How to fix
Remove the file if it should be empty; otherwise check the code that saved it.

## When it can be wrong
A shard may be empty by design, for example one for every rank if some ranks own nothing, and so may a file that does not
belong to the model: therefore this is a warning. If weights are missing, CFG003, CFG005 or IDX002 names them.

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
