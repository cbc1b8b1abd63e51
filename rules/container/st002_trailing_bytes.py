"""Bytes after the last tensor of a safetensors file belong to no tensor.

## What it checks
The file ends where its last tensor ends.

## Why it matters
safetensors refuses the file (`incomplete metadata, file not fully covered`), and with it transformers, vLLM and SGLang.
fastsafetensors and ComfyUI's own reader accept it, so the same file loads in one program and not in another. The bytes may be
the rest of a longer, older file that was overwritten in place, or hidden data.

## How to fix
Fetch the file again. If the writer pads files to blocks, truncate them after the last tensor.

## When it can be wrong
A writer may pad files to whole blocks for direct I/O or for a format of its own, and its own reader accepts them. safetensors
accepts none of them, so use `--ignore ST002` only if no other program will ever open the file. The content of the bytes is
not checked.

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
        yield replace(problem, hint="fetch the file again, or write it again with safetensors' save_file")
