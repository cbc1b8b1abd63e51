"""A key occurs twice in the header of a safetensors file, or in the index.

## What it checks
No object in a header or in the index has the same key twice. JSON parsers do not report it: most keep the last entry, some
the first.

## Why it matters
The format forbids it. It depends on the reader which tensor a name means. safetensors keeps the last entry; if both have data
of their own, it refuses the file with a misleading `invalid offset` or `file not fully covered`. Raven's nx refuses it
because of the name. For an index, it depends on the reader from which file a tensor is loaded.

## How to fix
Find out which of the two is right, and write the file again with each name once.

## When it can be wrong
Two identical entries give every reader the same tensor, and safetensors accepts them; two index entries that name the same
file do no harm either. The rule does not compare them. safetensors refuses a duplicate `__metadata__` or dtype. IDX005
reports a name that occurs in two files.

## Seen in
huggingface/safetensors#401, raven-ml/raven#226
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "ST013",
    "duplicate-key",
    severity="error",
    when=lambda ckpt: any(name.endswith((".safetensors", ".index.json")) for name in ckpt.files),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    configs = ("config.json", "adapter_config.json")
    for problem in ckpt.defects("duplicate-key", files=[name for name in ckpt.files if name not in configs]):
        yield replace(problem, hint="find out which of the two is right, and write the file again with each name once")
