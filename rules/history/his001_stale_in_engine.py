"""The trainer sent new values, but the engine still holds the old ones.

## What it checks
- The record has two syncs in a row. If the digest of a sent tensor changed between them, every engine tensor that is
  built from it changed too.
- The rule finds fused projections and experts by the names that vLLM and SGLang give them. It leaves out a tensor
  whose source it does not know.
- What comes one sync late is HIS008's, and this finding then an info.

## Why it matters
- The update call answered success, and the engine goes on with a part of the old policy. The longer that lasts, the
  further the rollouts are from the trainer.

## How to fix
- Look at the update path of the named tensors: their names, the buckets they were in, the rank that holds them.
- A trial (`ckptcheck refit`) names the cause.

## When it can be wrong
- An engine that rounds what it receives (FP8, INT4) may hold the same values after a very small step. The rule
  therefore leaves out norms and biases, unless the engine held them bit for bit as sent.

## Seen in
NVIDIA-NeMo/RL#3259 (half of the layers never synced), sgl-project/sglang#38298 (halves dropped between buckets)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "HIS001",
    "stale-in-engine",
    severity="error",
    on="history",
    when=lambda history: any(pair.before.held and pair.after.held and pair.after.sent for pair in history.pairs),
)
def check(history: History) -> Iterator[Problem]:
    found = [
        (pair.index, [place.partition("/")[2] for place in history.stale_tensors(pair)])
        for pair in history.pairs
        if pair.sent_changed
    ]
    for indices, names in history.follow(found):
        # what comes with the next sync is late, as others are at this one: HIS008 says it
        after = indices[-1] + 1
        late = history.find_late(after) if after < len(history.syncs) else {}
        is_late = any(late.get(name) == indices[-1] for name in names)
        others = [each for name, each in history.find_late(indices[0]).items() if name not in names]
        is_late = is_late or indices[0] - 1 in others
        yield Problem(
            f"{history.label(indices[0])}: {count(len(set(names)), 'tensor')} of the engine did not change although the"
            f" trainer sent new values: {join_truncated(set(names))}{history.describe_lasting(indices)}",
            key=names[0],
            hint="ckptcheck refit says why; until then restart the engine from a checkpoint",
            follows=("HIS008",) if is_late else (),
        )
