"""The shape of a tensor is larger than any memory.

## What it checks
The product of a tensor's dimensions, and its size in bits, fit into 64 bits.

## Why it matters
safetensors refuses the file (`overflow computing buffer size from shape and/or element type`). Readers that multiply without
an overflow check get a small number, allocate that much, and write past it. Such a file is damaged, or an attack.

## How to fix
Fetch the file again from a source you trust.

## When it can be wrong
It cannot: no machine holds such a tensor. ST005 reports an absurd shape that fits into 64 bits, unless the data is equally
long.

## Seen in
No public report of such a file; safetensors has an error of its own for it, `ValidationOverflow`.
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "ST006",
    "shape-overflow",
    severity="error",
    when=lambda ckpt: ckpt.has_shards,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("shape-overflow"):
        yield replace(problem, hint="do not use the file; fetch it again from a source you trust")
    ckpt.require_headers()
