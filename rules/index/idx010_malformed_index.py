"""The index is not a valid index.

## What it checks
`model.safetensors.index.json` is a JSON object whose `weight_map` maps tensor names to file names, and is not empty. It has
`metadata`, an object, which may be empty: transformers (5.24) stops without it; vLLM and SGLang do not.

## Why it matters
transformers stops. vLLM and SGLang stop as well, or cannot find out which files belong to the model.

## How to fix
`ckptcheck scan --fix` writes the index again from the headers of a complete set of shards.

## When it can be wrong
A byte order mark stops Python's JSON reader, but not that of every other language: such an index works if no loader uses
Python. The rule checks only the form; IDX001 and IDX002 report names that do not exist.

## Seen in
Blaizzy/mlx-vlm#1827
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import IndexedCheckpoint


@rule("IDX010", "malformed-index", severity="error", on="index")
def check(ckpt: IndexedCheckpoint) -> Iterator[Problem]:
    for problem in ckpt.defects(
        "malformed-index", "not-json", "not-object", "byte-order-mark", files={ckpt.index.file}
    ):
        yield replace(
            problem,
            message=f"the index cannot be used: {problem.message}",
            hint="ckptcheck scan --fix writes it again from the headers",
        )
