"""The index does not give the total size.

## What it checks
The index has `metadata.total_size`. Without `metadata` at all, IDX010 is an error too.

## Why it matters
Tools that use it to decide whether a download is complete skip that check (exo). Most loaders do not need it.

## How to fix
`ckptcheck scan --fix` adds it.

## When it can be wrong
It is only an info: transformers, vLLM and SGLang load the model anyway. IDX007 reports a wrong number.

## Seen in
exo-explore/exo#1956
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import IndexedCheckpoint


@rule("IDX012", "missing-total-size", severity="info", on="index", when=lambda ckpt: ckpt.index_decides)
def check(ckpt: IndexedCheckpoint) -> Iterator[Problem]:
    if "total_size" not in ckpt.index.metadata:
        yield Problem(
            "the index does not say how large the model is",
            file=ckpt.index.file,
            key="metadata.total_size",
            hint="ckptcheck scan --fix adds it",
        )
