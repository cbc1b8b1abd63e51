"""Tensors of the engine could not be read, so no sync of them was checked.

## What it checks
- Every tensor of the engine was read at one sync at least. An engine that packs its weights may leave empty tensors
  behind; whether these change says nothing.
- `ckptcheck.watch` reads a packed linear layer of vLLM's CPU build by what the layer computes. It cannot do that
  through a server.

## Why it matters
- The record looks complete, and a fault in these tensors cannot be found in it.

## How to fix
- Watch the engine's module in its own process (`ckptcheck.watch.module`), or check the weights by a trial
  (`ckptcheck refit`).

## When it can be wrong
- A parameter may be empty because the model does not use it.

## Seen in
vLLM 0.32 for CPUs: every linear layer has an empty parameter beside its packed copy
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "HIS011",
    "unseen-in-engine",
    severity="info",
    on="history",
    when=lambda history: any(sync.held or sync.unseen for sync in history.syncs),
)
def check(history: History) -> Iterator[Problem]:
    if history.unseen:
        names = {place.partition("/")[2] for place in history.unseen}
        yield Problem(
            f"{count(len(names), 'tensor')} of the engine could not be read at any sync, so nothing is known of whether what was"
            f" sent arrived there: {join_truncated(names)}",
            key=min(names),
            hint="watch the engine's module in its own process, or check these weights by ckptcheck refit",
        )
