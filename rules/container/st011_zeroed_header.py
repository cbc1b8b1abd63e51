"""A safetensors file begins with zero bytes.

## What it checks
The first 8 bytes, the length of the header, are not all zero.

## Why it matters
safetensors refuses the file (`invalid JSON in header: EOF while parsing`). Zeros where there was something are what a
crash leaves of a file whose size was recorded and whose content was not, and what a download leaves that reserves the
space first. The rest of the file may be zero too, or stale.

## How to fix
Fetch or write the file again. For checkpoints of your own: flush and sync before the folder is announced as complete.

## When it can be wrong
It fires on no file that safetensors reads. Only the length is looked at: a header that became zeros behind it is
ST010, and data that did, under a sound header, are for VAL003, VAL004 and VAL005, which need the values.

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
