"""The trainer stopped sending tensors, or the engine lost some.

## What it checks
- Each sync sends all the tensors of the sync before, or an entirely different set (an adapter in place of its base).
- The same holds for the names of the engine's tensors. A tensor that only could not be read has not vanished: HIS011
  reports it.

## Why it matters
- A tensor that is not sent keeps its old value in the engine, and nothing says so.

## How to fix
- Compare the two exports. The usual cause is a pipeline stage or a rank that failed to join.

## When it can be wrong
- A job may stop sending the tensors that it freezes.

## Seen in
NVIDIA-NeMo/RL#3259, NVIDIA/Model-Optimizer#2427 (0 of 15 MTP tensors exported, exit code 0)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History
from ckptcheck.text.formatting import count, join_truncated


@rule("HIS007", "vanished-tensors", severity="error", on="history", when=lambda history: bool(history.pairs))
def check(history: History) -> Iterator[Problem]:
    for pair in history.pairs:
        for before, after, is_sent in (
            (pair.before.sent, pair.after.sent, True),
            (pair.before.held, pair.after.held, False),
        ):
            unseen = () if is_sent else pair.after.unseen
            missing_names = [name for name in before if name not in after and name not in unseen]
            added_names = [name for name in after if name not in before]
            if not missing_names or not after or added_names:
                continue
            number = f"{len(missing_names):,} of {count(len(before), 'tensor')}"
            description = f"the trainer no longer sends {number}" if is_sent else f"the engine no longer has {number}"
            yield Problem(
                f"{history.label(pair.index)}: {description}: {join_truncated(missing_names)}",
                key=missing_names[0],
                hint="compare what is exported now with what was exported before",
            )
