"""An entry of a safetensors header does not describe a tensor.

## What it checks
Every entry of the header is an object with a `dtype` (a string), a `shape` (integers) and `data_offsets` (two integers, the
second not less than the first).

## Why it matters
safetensors refuses the whole file (`invalid JSON in header`, `invalid offset`); it does not accept `2.0` or `-0` as integers.
It accepts two odd forms, an entry written as a list and a dtype written as an object, but readers that rely on the format,
such as fastsafetensors, stop with a TypeError.

## How to fix
Write the file again with safetensors' `save_file`.

## When it can be wrong
An entry written as a list and a dtype written as an object load in safetensors, and so in transformers, vLLM and SGLang; if
no other program reads the header, these two do no harm. Additional keys in an entry are accepted, as in safetensors. ST005
and ST007 check whether dtype and offsets are valid.

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
        yield replace(problem, hint="write the file again with safetensors' save_file")
    ckpt.require_headers()
