"""Tensors that were sent before are not sent any more.

## What it checks
What is sent at a sync is what was sent at the one before, or something else altogether (an adapter in place of its base). The
same holds for the names of the engine's tensors.

## Why it matters
A tensor that is not sent stays as it was in the engine, and nothing says so.

## How to fix
Compare the two exports; a stage of the pipeline or a rank that failed to join is the usual cause.

## When it can be wrong
A job that stops sending what it freezes.

## Seen in
NVIDIA-NeMo/RL#3259, NVIDIA/Model-Optimizer#2427 (0 of 15 MTP tensors exported, exit code 0)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.history.history import History
from ckptcheck.phrase import count, few


@rule("HIS007", "vanished-tensors", severity="error", on="history", when=lambda history: bool(history.turns))
def check(history: History) -> Iterator[Problem]:
    for turn in history.turns:
        for side, before, after in (
            ("sent before and {} not now", turn.before.sent, turn.after.sent),
            ("in the engine before and {} not now", turn.before.held, turn.after.held),
        ):
            gone = [name for name in before if name not in after]
            came = [name for name in after if name not in before]
            if not gone or not after or came:
                continue
            was, now = ("was", "is") if len(gone) == 1 else ("were", "are")
            said = f"{count(len(gone), 'tensor')} of {len(before):,} {was} {side.format(now)}"
            yield Problem(
                f"{history.name(turn.index)}: {said}: {few(gone)}",
                key=gone[0],
                hint="compare what is exported now with what was before",
            )
