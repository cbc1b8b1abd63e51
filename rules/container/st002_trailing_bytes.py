"""Bytes follow the last tensor of a safetensors file and belong to none.

## What it checks
The file ends where its last tensor ends.

## Why it matters
safetensors refuses the file (`incomplete metadata, file not fully covered`), and with it transformers, vLLM and
SGLang. fastsafetensors and ComfyUI's own reader take it, so the same file loads in one place and not in another. The
bytes themselves may be the rest of a longer, older file that was overwritten in place, or something hidden there.

## How to fix
Fetch the file again. Where the writer pads files to blocks, cut them after the last tensor.

## When it can be wrong
A writer that pads files to whole blocks, for direct I/O or for a format of its own, makes files that its own reader
takes. safetensors takes none of them, so ignore the rule (`--ignore ST002`) only where nothing else will ever open
the file. What the bytes are is not looked at.

## Seen in
Comfy-Org/ComfyUI#15602, Comfy-Org/ComfyUI#15599
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "ST002",
    "trailing-bytes",
    severity="error",
    when=lambda ckpt: ckpt.has_shards,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("trailing-bytes"):
        yield replace(problem, hint="fetch the file again, or write it anew with safetensors' save_file")
