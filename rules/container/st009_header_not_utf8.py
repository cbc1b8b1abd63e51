"""The header of a safetensors file is not UTF-8 text.

## What it checks
The header is valid UTF-8. Otherwise a broken disk or transfer, or a transfer in text mode, changed bytes of it, or a program
wrote names in another encoding.

## Why it matters
safetensors refuses the file (`invalid UTF-8 in header`). If the header is damaged, the data, which has no checksum, may be
damaged too.

## How to fix
Fetch the file again, and compare its SHA-256 with the original's.

## When it can be wrong
It never fires on a file that safetensors reads. It is quiet if the changed bytes are still UTF-8, such as one letter in place
of another: then usually a name differs, and IDX002, CFG005 or CFG017 reports it.

## Seen in
No public report that names this cause; safetensors calls it `InvalidHeader`.
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "ST009",
    "header-not-utf8",
    severity="error",
    when=lambda ckpt: ckpt.has_shards,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("header-not-utf8"):
        yield replace(problem, hint="fetch the file again: the values may be damaged too")
