"""The header of a safetensors file is not a JSON object.

## What it checks
The header begins with `{`, as the format requires, and is one JSON object, followed only by white space. JSON is parsed
strictly, as safetensors does: no NaN, no numbers beyond a double, no half surrogate pairs.

## Why it matters
safetensors refuses the file (`invalid JSON in header`). It accepts white space before the `{` so far, but the format forbids
it, and Galaxy, for example, does not recognize the file as safetensors. If the header is damaged, the data may be damaged
too.

## How to fix
Fetch the file again. If your own program writes headers, use `save_file` instead.

## When it can be wrong
With white space before the `{` the file loads in safetensors 0.8, transformers, vLLM and SGLang: use `--ignore ST010` if no
other program reads it. A header above 32 MB in an unusual form is not examined entry by entry; the scan then reports that it
could not check it.

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
