"""A key stands twice in the header of a safetensors file, or in the index.

## What it checks
No object in a header or in the index has the same key twice. JSON parsers do not tell: most keep the last one, some
the first.

## Why it matters
The format forbids it. Which tensor a name stands for depends on the reader: safetensors keeps the last entry, and
where the two have data of their own refuses the file with a misleading `invalid offset` or `file not fully covered`;
Raven's nx refuses it for the name. In an index, the file that a tensor is read from depends on the reader.

## How to fix
Find out which of the two is meant, and write the file anew with each name once.

## When it can be wrong
Two entries of a name that agree in everything give every reader the same tensor, and safetensors lets them pass; in
an index, two that name the same file do no harm either. They are not compared. `__metadata__` twice, or a dtype,
safetensors refuses. A name that stands in two files is IDX005.

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
        yield replace(problem, hint="find out which of the two is meant, and write the file anew with each name once")
