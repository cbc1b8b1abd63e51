"""Bytes between the tensors of a safetensors file belong to none.

## What it checks
The first tensor begins where the data begins, and every other one where the one before it ends. This is about the
space between entries that are sound in themselves; one whose length is wrong is ST005.

## Why it matters
The format allows no holes, so that nothing can hide in a file. safetensors refuses it (`invalid offset for tensor`),
and fastsafetensors too (`InvalidOffset`). A hole is left where an entry was taken out of the header and its data was
not, or where a writer aligns tensors by leaving bytes free.

## How to fix
Write the file anew with safetensors' `save_file`. Where an entry is missing, take it from the original.

## When it can be wrong
A writer that aligns tensors to pages for a reader of its own leaves holes on purpose; `--ignore ST003` where that
reader is the only one. Where the header has an entry that cannot be understood, or a name twice, that is said in its
place (ST020, ST013), for the hole may be theirs.

## Seen in
ml-explore/mlx#4439 (a writer that was to leave gaps), antirez/h3.c#48
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "ST003",
    "offset-hole",
    severity="error",
    when=lambda ckpt: ckpt.has_shards,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("hole"):
        yield replace(problem, hint="write the file anew with safetensors' save_file")
    ckpt.require_headers()
