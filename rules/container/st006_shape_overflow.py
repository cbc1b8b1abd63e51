"""The shape of a tensor is larger than any memory.

## What it checks
The product of a tensor's dimensions, and its size in bits, fit into 64 bits.

## Why it matters
safetensors refuses the file (`overflow computing buffer size from shape and/or element type`). Readers that multiply
without looking get a small number, allocate that, and write past it: a file like this is damaged, or made to attack.

## How to fix
Fetch the file again from a source you trust.

## When it can be wrong
It cannot be: no machine holds such a tensor. A shape that is absurd but fits into 64 bits is ST005, as long as the
data behind it is not as long.

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
