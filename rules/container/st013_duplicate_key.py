"""A key occurs twice in a header, the index or a config.

## What it checks
No object in the header of a safetensors file, in the index, in `config.json` or in `adapter_config.json` has the same key
twice. JSON parsers do not report it: most keep the last entry, some the first. In a config it is a warning.

## Why it matters
In a header or an index, the reader decides which tensor or which file a name means. The format of safetensors forbids it:
safetensors keeps the last entry, and if both have data of their own, it refuses the file with a misleading `invalid offset` or
`file not fully covered`. In a config, transformers, vLLM and SGLang keep the last one, so an edit of the first has no effect.

## How to fix
Find out which of the two is right, and write the file again with each name once.

## When it can be wrong
Two identical entries do no harm in most readers; the rule does not compare them. (safetensors refuses a second `__metadata__`
or dtype.) IDX005 reports a name that occurs in two files.

## Seen in
huggingface/safetensors#401, raven-ml/raven#226
"""

from collections.abc import Iterator

from msgspec import structs

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint

CONFIGS = ("config.json", "adapter_config.json")


@rule(
    "ST013",
    "duplicate-key",
    severity="error",
    when=lambda ckpt: any(name.endswith((".safetensors", ".index.json", *CONFIGS)) for name in ckpt.files),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("duplicate-key", files=ckpt.files.keys() - set(CONFIGS)):
        yield structs.replace(
            problem, hint="find out which of the two is right, and write the file again with each name once"
        )
    for problem in ckpt.defects("duplicate-key", files=CONFIGS):
        text = "this setting occurs twice, and Python keeps the last"
        yield structs.replace(problem, message=text, severity="warning", hint="remove the wrong one")
