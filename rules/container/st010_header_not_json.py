"""The header of a safetensors file is not a JSON object.

## What it checks
The header begins with `{`, as the format demands, and is one JSON object with nothing but white space after it. JSON
is taken strictly, as safetensors takes it: no NaN, no numbers beyond a double, no half surrogate pairs.

## Why it matters
safetensors refuses the file (`invalid JSON in header`). White space before the `{` it lets pass so far, but the
format forbids it and Galaxy, for one, does not take the file for safetensors. Where the header is damaged, so may be
the data.

## How to fix
Fetch the file again. Where a program of yours writes headers, let `save_file` do it.

## When it can be wrong
With white space before the `{` the file loads in safetensors 0.8, transformers, vLLM and SGLang: `--ignore ST010` if
they are all that read it. A header above 32 MB that is not written as programs write it is not examined entry by
entry; the scan then says that it could not look.

## Seen in
huggingface/safetensors#466 and #601 (a writer that wrote `{},"__metadata__"…`), tloen/alpaca-lora#628,
galaxyproject/galaxy#20754 (the `{`)
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "ST010",
    "header-not-json",
    severity="error",
    when=lambda ckpt: ckpt.has_shards,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("header-not-json"):
        yield replace(problem, hint="fetch the file again, or write it with safetensors' save_file")
