"""The `__metadata__` of a safetensors file is not a map from strings to strings.

## What it checks
`__metadata__` in the header, where there is one, is a JSON object whose values are all strings. (`null` passes here,
as it does with safetensors; see ST017.)

## Why it matters
safetensors refuses the whole file (`invalid JSON in header: invalid type`). Other readers take numbers, so a writer
that does not use safetensors itself does not notice. A tensor that is called `__metadata__` ends in the same place.

## How to fix
Write numbers, lists and objects as strings, for example with `json.dumps`.

## When it can be wrong
Readers that take numbers and lists load the file, so a model that never leaves such a program is not hurt. What the
strings say is not looked at: a `format` that is wrong is ST017, other keys are not judged.

## Seen in
huggingface/safetensors#278, huggingface/safetensors#849
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "ST016",
    "malformed-metadata",
    severity="error",
    when=lambda ckpt: ckpt.has_shards,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("malformed-metadata"):
        yield replace(problem, hint="write the values as strings, for example with json.dumps")
    ckpt.require_headers()
