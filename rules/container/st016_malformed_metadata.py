"""The `__metadata__` of a safetensors file is not a map from strings to strings.

## What it checks
If the header has a `__metadata__`, it is a JSON object whose values are all strings. (`null` passes here, as with
safetensors; see ST017.)

## Why it matters
safetensors refuses the whole file (`invalid JSON in header: invalid type`). Other readers accept numbers, so a writer that
does not use safetensors does not notice. A tensor named `__metadata__` has the same effect.

## How to fix
Write numbers, lists and objects as strings, for example with `json.dumps`.

## When it can be wrong
Readers that accept numbers and lists load the file, so a model that only they read works. The content of the strings is not
checked: ST017 reports a wrong `format`, and other keys are ignored.

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
