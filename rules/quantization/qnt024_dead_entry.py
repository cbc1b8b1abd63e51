"""An entry of the ignore list matches nothing.

## What it checks
Every entry matches at least one module for one of the chosen consumers. QNT023 reports entries that look misspelt.

## Why it matters
Nothing happens now. Lists are copied from model to model, and unused entries hide missing ones.

## How to fix
Remove the entry.

## When it can be wrong
A list for a family of models is right to name modules that only some of them have, such as a vision tower or a router.

## Seen in
vllm-project/llm-compressor (one list for several models)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.consumers.mismatches import evaluate_checkpoint, find_unused_entries


@rule(
    "QNT024", "dead-entry", severity="info", when=lambda ckpt: not ckpt.is_partial and bool(evaluate_checkpoint(ckpt))
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for entry in find_unused_entries(ckpt):
        if entry.suggestion is None:
            yield Problem(f"{entry.text!r} matches no module of this checkpoint", file=entry.file, key=entry.key)
