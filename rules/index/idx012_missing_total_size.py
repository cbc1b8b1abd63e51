"""The index does not give the total size.

## What it checks
The index has `metadata.total_size`.

## Why it matters
Tools that judge a download complete by it skip the judgement (exo), and transformers before 4.40 expects `metadata`
to exist. Most loaders do without.

## How to fix
`ckptcheck scan --fix` adds it.

## When it can be wrong
It is only an information: transformers since 4.40, vLLM and SGLang load the model all the same, and so does everybody
who does not plan by the number. Where it is there and wrong, IDX007 says so.

## Seen in
exo-explore/exo#1956
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule("IDX012", "missing-total-size", severity="info", when=lambda ckpt: ckpt.index_decides)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.index is not None
    if "total_size" not in ckpt.index.metadata:
        yield Problem(
            "the index does not say how large the model is",
            file=ckpt.index.file,
            key="metadata.total_size",
            hint="ckptcheck scan --fix adds it",
        )
