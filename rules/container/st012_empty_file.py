"""A safetensors file is empty.

## What it checks
No `.safetensors` file is 0 bytes long.

## Why it matters
safetensors refuses it (`header too small`), and with it transformers, vLLM and SGLang. A full disk, a killed process or
`touch` leaves such a file.

## How to fix
Fetch or write the file again, or remove it if it does not belong to the model.

## When it can be wrong
Every empty `.safetensors` file in the folder counts, even one that no loader opens, such as a placeholder for an optimizer.
Remove it, or use `--ignore ST012`; without an index, loaders that glob files stop at it anyway. A file being downloaded may
be empty for a moment.

## Seen in
kijai/ComfyUI-CogVideoXWrapper#239 (HeaderTooSmall)
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "ST012",
    "empty-file",
    severity="error",
    when=lambda ckpt: ckpt.has_shards,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("empty-file"):
        yield replace(problem, hint="fetch or write the file again, or remove it")
