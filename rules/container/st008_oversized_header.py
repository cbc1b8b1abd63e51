"""What stands where the header's length should be is too large to be one.

## What it checks
The first 8 bytes of a `.safetensors` file give the length of its header, and safetensors accepts up to 100,000,000
bytes. Files of other formats have letters there, which read as a huge number: a PyTorch `.bin`, GGUF and others are
recognised and named.

## Why it matters
safetensors refuses the file (`header too large`, before 0.6 `HeaderTooLarge`). Readers without a limit try to
allocate that much memory.

## How to fix
Fetch the right file, or convert this one: renaming a `.bin` does not make it safetensors. A model with more than
about a million tensors has to be split into shards.

## When it can be wrong
safetensors could raise its limit; a file with a longer header would then be sound for those who have that version. Of
the formats that are named only a few are known. One whose first eight bytes make a small number goes on to ST010 or
ST001.

## Seen in
huggingface/safetensors#414 (a PyTorch file), huggingface/safetensors#668 (1,290,000 tensors in one file)
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "ST008",
    "oversized-header",
    severity="error",
    when=lambda ckpt: ckpt.has_shards,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("oversized-header"):
        yield replace(problem, hint="fetch the right file, or convert it: renaming does not make it safetensors")
