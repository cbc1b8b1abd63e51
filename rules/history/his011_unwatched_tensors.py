"""Tensors of the engine could not be read, or only a part of what was sent passed the watch.

## What it checks
- Every tensor of the engine was read at one sync at least. An engine that packs its weights may leave empty tensors behind;
  whether these change says nothing.
- The record says of every sync that all weights passed the watch.

## Why it matters
- The record looks complete, and a fault in tensors that were not read or not sent past the watch cannot be found in it.
- Where only a part passed, a tensor that is missing from it may have been sent.

## How to fix
- Watch the engine's module in its own process (`ckptcheck.watch.module`), or check the weights by a trial (`ckptcheck refit`).
- Watch every rank that sends, each with a record of its own, or the engine's side too.

## When it can be wrong
- A parameter may be empty because the model does not use it.
- The job sends the rest nowhere: then nothing is missing.

## Seen in
vLLM 0.32 for CPUs: every linear layer has an empty parameter beside its packed copy; slime with pipeline parallelism (each stage
broadcasts its own weights), NeMo-RL with nccl_reshard
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History
from ckptcheck.text.formatting import count, join_truncated


@rule("HIS011", "unwatched-tensors", severity="info", on="history")
def check(history: History) -> Iterator[Problem]:
    yield from _find_unseen(history)
    yield from _find_unwatched(history)


def _find_unseen(history: History) -> Iterator[Problem]:
    if history.unseen:
        names = {place.partition("/")[2] for place in history.unseen}
        yield Problem(
            f"{count(len(names), 'tensor')} of the engine could not be read at any sync, so nothing is known of whether what was"
            f" sent arrived there: {join_truncated(names)}",
            key=min(names),
            hint="watch the engine's module in its own process, or check these weights by ckptcheck refit",
        )


def _find_unwatched(history: History) -> Iterator[Problem]:
    for reason in dict.fromkeys(sync.partial for sync in history.syncs if sync.partial):
        yield Problem(
            f"only a part of what was sent passed the watch: {reason}",
            hint="watch every rank that sends, each with a record of its own, or the engine's side too",
        )
