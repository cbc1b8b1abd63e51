"""A safetensors file begins with zero bytes.

## What it checks
The first 8 bytes, the length of the header, are not all zero.

## Why it matters
safetensors refuses the file (`invalid JSON in header: EOF while parsing`). A crash leaves zeros if the size of the file was
recorded and its content was not; so does a download that reserves the space first. The rest of the file may be zero or stale
too.

## How to fix
Fetch or write the file again. For your own checkpoints: flush and sync before you announce the folder as complete.

## When it can be wrong
It never fires on a file that safetensors reads. Only the length is checked: ST010 reports zeros in the rest of the header,
and VAL003, VAL004 and VAL005, which need the values, report zeros in the data.

## Seen in
EricTan7/VeritasPP#2, sgl-project/sglang#13870, sgl-project/sglang#14465, sgl-project/sglang#13729
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "ST011",
    "zeroed-header",
    severity="error",
    when=lambda ckpt: ckpt.has_shards,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("zeroed-header"):
        yield replace(problem, hint="fetch or write the file again")
