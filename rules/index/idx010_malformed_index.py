"""The index is not what an index has to be.

## What it checks
`model.safetensors.index.json` is a JSON object whose `weight_map` maps tensor names to file names, and is not empty.

## Why it matters
transformers stops on it. vLLM and SGLang do not find out which files belong to the model, or stop as well.

## How to fix
`ckptcheck scan --fix` writes the index anew from the headers of a whole set of shards.

## When it can be wrong
A byte order mark stops Python's JSON reader and not that of every other language; where none of the loaders is
Python's, such an index is sound. The form alone is looked at here; names that lead nowhere are IDX001 and IDX002.

## Seen in
Blaizzy/mlx-vlm#1827
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule("IDX010", "malformed-index", severity="error", when=lambda ckpt: ckpt.index is not None)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.index is not None
    for problem in ckpt.defects(
        "malformed-index", "not-json", "not-object", "byte-order-mark", files={ckpt.index.file}
    ):
        yield replace(
            problem,
            message=f"the index cannot be used: {problem.message}",
            hint="ckptcheck scan --fix writes it anew from the headers",
        )
