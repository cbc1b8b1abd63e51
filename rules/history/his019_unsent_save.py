"""A checkpoint of the job holds weights that no sync of the record sent.

## What it checks
- The record names what it sent by its content (`Watch(identity=…)`, `ckptcheck refit --record`), and `--saved` names a checkpoint.
- The identity of the checkpoint is that of at least one sync.

## Why it matters
The evaluation, the next job or the release loads what was saved, and the rewards were measured with what was sent. If the two are
different weights, one of the ways out of the trainer is wrong: a save from before the step, a copy that was not updated, an export
that loses a tensor.

## How to fix
`ckptcheck diff` compares the save with another one; `ckptcheck refit` compares what the trainer holds, sends and saves.

## When it can be wrong
The job saved at a step at which it did not sync, or the record no longer has that sync (`keep`). A save in another dtype than was
sent (float32 beside bfloat16) holds other bits. A trainer that sends tensors joined needs the checkpoint's names:
`Watch(identity="./base-model")`.

## Seen in
THUDM/slime#2270 (converters that dropped frozen tensors)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.runs.history.history import History
from ckptcheck.text.formatting import count


@rule("HIS019", "unsent-save", severity="warning", on="history", when=lambda history: history.saved is not None)
def check(history: History) -> Iterator[Problem]:
    named = [index for index, sync in enumerate(history.syncs) if sync.identity is not None]
    if history.saved is None or not named:
        raise Skip("the record does not name what was sent by its content; Watch(identity=…) does")
    if history.saved.identity not in {history.syncs[index].identity for index in named}:
        last = named[-1]
        yield Problem(
            f"{history.saved.target} holds other weights than any of {count(len(named), 'sync')} sent: its identity is"
            f" {history.saved.identity[:16]}…, and {history.label(last)} sent {str(history.syncs[last].identity)[:16]}…",
            hint="name the checkpoint of a step in the record; ckptcheck refit compares what is held, sent and saved",
        )
