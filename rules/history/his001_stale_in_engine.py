"""The trainer sent other numbers, and the engine holds the same as before.

## What it checks
Between two syncs, every tensor of the engine changed that is made of one whose sent digest changed. Fused projections and
experts are told by the names that vLLM and SGLang give them; a tensor of which nobody knows what it is made of is left out.

## Why it matters
The update call answered success, and the engine goes on with a part of the old policy. The longer it lasts, the further the
rollouts are from the trainer.

## How to fix
Look at the update path of the named tensors: their names, the buckets they were in, the rank that holds them. A trial
(`ckptcheck refit`) names the cause.

## When it can be wrong
An engine that rounds what it is sent (FP8, INT4) may hold the same numbers after a very small step. So norms and biases are left
out, unless it held them bit for bit as they were sent.

## Seen in
NVIDIA-NeMo/RL#3259 (half of the layers never synced), sgl-project/sglang#38298 (halves dropped between buckets)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.history.history import History
from ckptcheck.phrase import count, few


@rule(
    "HIS001",
    "stale-in-engine",
    severity="error",
    on="history",
    when=lambda history: any(turn.before.held and turn.after.held and turn.after.sent for turn in history.turns),
)
def check(history: History) -> Iterator[Problem]:
    for turn in history.turns:
        if stale := history.stale(turn):
            names = [key.partition("/")[2] for key in stale]
            yield Problem(
                f"{history.name(turn.index)}: {count(len(set(names)), 'tensor')} of the engine did not change though other"
                f" numbers were sent: {few(set(names))}",
                key=names[0],
                hint="ckptcheck refit says why; until then restart the engine from a checkpoint",
            )
