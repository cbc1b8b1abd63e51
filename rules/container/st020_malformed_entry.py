"""An entry of a safetensors header does not describe a tensor.

## What it checks
Every entry of the header is an object with a `dtype` (a string), a `shape` (whole numbers) and `data_offsets` (two
whole numbers, the second not less than the first).

## Why it matters
safetensors refuses the whole file (`invalid JSON in header`, `invalid offset`); numbers such as `2.0` or `-0` are no
whole numbers to it. Two odd forms it lets pass, an entry written as a list and a dtype written as an object, but
readers that take the header for what the format says, such as fastsafetensors, stop on them with a TypeError.

## How to fix
Write the file anew with safetensors' `save_file`.

## When it can be wrong
An entry written as a list and a dtype written as an object load in safetensors, and so in transformers, vLLM and
SGLang; where nothing else reads the header, nobody is hurt by these two. Further keys in an entry are let pass, as
safetensors lets them. Whether dtype and offsets make sense is for ST005 and ST007.

## Seen in
Comfy-Org/ComfyUI#14657, foundation-model-stack/fastsafetensors#96 (KeyError: data_offsets)
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "ST020",
    "malformed-entry",
    severity="error",
    when=lambda ckpt: ckpt.has_shards,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("malformed-entry"):
        yield replace(problem, hint="write the file anew with safetensors' save_file")
    ckpt.require_headers()
