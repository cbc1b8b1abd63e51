"""Bytes between the tensors of a safetensors file belong to no tensor.

## What it checks
The first tensor begins where the data begins, and every other tensor where the previous one ends. This rule covers gaps
between entries of correct length; ST005 reports a wrong length.

## Why it matters
The format forbids holes, so that nothing can be hidden in a file. safetensors refuses it (`invalid offset for tensor`), and
fastsafetensors too (`InvalidOffset`). A hole remains if an entry was removed from the header but its data was not, or if a
writer aligns tensors by leaving bytes free.

## How to fix
Write the file again with safetensors' `save_file`. If an entry is missing, copy it from the original.

## When it can be wrong
A writer may leave holes on purpose to align tensors to pages: use `--ignore ST003` if only its own reader opens the file. If
the header has an unreadable entry or a duplicate name, ST020 or ST013 is reported instead, because the hole may belong to
that entry.

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
        yield replace(problem, hint="write the file again with safetensors' save_file")
    ckpt.require_headers()
