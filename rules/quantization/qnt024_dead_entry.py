"""An entry of the ignore list matches nothing.

## What it checks
Every entry matches at least one module for one of the chosen consumers. Entries that look like a slip are QNT023's.

## Why it matters
Nothing happens now. Lists are copied from model to model, and what is dead here hides what is missing.

## How to fix
Take the entry out.

## When it can be wrong
A list that is meant for a family of models, some of which have a vision tower or a router, is right to name both.

## Seen in
vllm-project/llm-compressor (one list for several models)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.dialects.views import dead, views


@rule("QNT024", "dead-entry", severity="info", when=lambda ckpt: not ckpt.is_partial and bool(views(ckpt)))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for entry in dead(ckpt):
        if entry.meant is None:
            yield Problem(f"{entry.text!r} matches no module of this checkpoint", file=entry.file, key=entry.key)
