"""A matrix was sent unchanged at every step, while its siblings in other layers changed.

## What it checks
- Over three or more steps that changed something, every matrix changed at least once.
- If all matrices of a kind stayed the same, the rule does not report them: that is how a job freezes a part of the
  model on purpose.
- The rule leaves out norms and biases (in bf16 a step may round to nothing) and single experts (an expert that no
  token is routed to has no gradient).

## Why it matters
- The tensor is outside of the optimizer, or a pipeline stage exports a copy that no step updates.

## How to fix
- Look for the tensor among the optimizer's parameters, and for the code that exports it.

## When it can be wrong
- Lower layers that were frozen on purpose.

## Seen in
NVIDIA-NeMo/RL#3259 (layers of the second pipeline stage)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History, name_pattern, trainable_matrices
from ckptcheck.text.formatting import count, join_truncated

STEPS = 3


@rule(
    "HIS004",
    "never-updated",
    severity="warning",
    on="history",
    when=lambda history: sum(bool(pair.sent_changed) for pair in history.step_pairs) >= STEPS,
)
def check(history: History) -> Iterator[Problem]:
    constant = {name for name in history.constant_names if history.count_comparisons(name) >= STEPS}
    changing_kinds = {name_pattern(name) for name in history.syncs[-1].sent if name not in constant}
    names = sorted(name for name in trainable_matrices(constant) if name_pattern(name) in changing_kinds)
    if names:
        yield Problem(
            f"{count(len(names), 'matrix', 'matrices')} never changed over {count(len(history.step_pairs), 'step')} although"
            f" others of their kind did: {join_truncated(names)}",
            key=names[0],
            hint="look for it among the optimizer's parameters",
        )
