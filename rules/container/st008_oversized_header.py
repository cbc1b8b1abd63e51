"""The header length of a safetensors file is too large.

## What it checks
The first 8 bytes of a `.safetensors` file give the length of its header, and safetensors accepts up to 100,000,000 bytes.
Files of other formats have letters there, which read as a huge number. The finding names the format if it is a PyTorch
`.bin`, GGUF or another known one.

## Why it matters
safetensors refuses the file (`header too large`, before 0.6 `HeaderTooLarge`). Readers without a limit try to allocate that
much memory.

## How to fix
Fetch the right file, or convert this one: renaming a `.bin` does not make it safetensors. A model with more than about a
million tensors has to be split into shards.

## When it can be wrong
safetensors may raise its limit; a longer header would then be sound for users of that version. The rule recognizes only a few
other formats. If the first eight bytes of another format make a small number, ST010 or ST001 reports it.

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
