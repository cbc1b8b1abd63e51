"""The header of a safetensors file is not UTF-8 text.

## What it checks
The header is valid UTF-8. Where it is not, bytes of it were changed: by a broken disk or transfer, by a transfer in
text mode, or by a program that wrote names in another encoding.

## Why it matters
safetensors refuses the file (`invalid UTF-8 in header`). Where the header is damaged, so may be the data, which
carries no checksum.

## How to fix
Fetch the file again, and compare its SHA-256 with the original's.

## When it can be wrong
It fires on no file that safetensors reads. It is quiet when the bytes that changed are UTF-8 still, such as a letter
that became another: then mostly a name differs, and IDX002, CFG005 or CFG017 sees that.

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
