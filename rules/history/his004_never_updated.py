"""A matrix is sent unchanged, while its siblings in other layers change.

## What it checks
- Over three or more steps that changed something, every matrix changed at least once.
- A matrix that changed at every step does not stop, for three steps up to the end of the record, while its siblings go on.
- If all matrices of a kind stayed the same, the rule does not report them: that is how a job freezes a part of the
  model on purpose.
- Where the watch knows what the trainer trains (TRL), it leaves out what is frozen. One matrix without siblings, such as a head,
  counts there too if it alone never changes.
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

from collections import Counter
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History, name_pattern, trainable_matrices
from ckptcheck.text.formatting import count, join_truncated

STEPS = 3
LONE = 1
"""Matrices without a sibling that may stand still by mistake: a head. All of them, embeddings too, are frozen on purpose."""


@rule(
    "HIS004",
    "never-updated",
    severity="warning",
    on="history",
    when=lambda history: sum(bool(pair.sent_changed) for pair in history.step_pairs) >= STEPS,
)
def check(history: History) -> Iterator[Problem]:
    constant = {name for name in history.constant_names if history.count_comparisons(name) >= STEPS}
    constant -= history.sent_otherwise | history.frozen  # HIS025 says why, or they are frozen on purpose
    changing_kinds = {name_pattern(name) for name in history.compared_names if name not in constant}
    names = sorted(name for name in trainable_matrices(constant) if name_pattern(name) in changing_kinds)
    if lone := [] if names else _list_lone(history, constant):
        names = lone
    if names:
        yield Problem(
            f"{count(len(names), 'matrix', 'matrices')} never changed over {count(len(history.step_pairs), 'step')} although"
            f" {'all others' if lone else 'others of their kind'} did: {join_truncated(names)}",
            key=names[0],
            hint="look for it among the optimizer's parameters",
        )
    stopped: dict[tuple[int, ...], list[str]] = {}
    for name, since in history.stopped_matrices.items():
        stopped.setdefault(since, []).append(name)
    for indices, names in stopped.items():
        yield Problem(
            f"{history.label(indices[0])}: {count(len(names), 'matrix', 'matrices')} that changed at every step before"
            f" {'is' if len(names) == 1 else 'are'} sent unchanged, although all others of their kind change:"
            f" {join_truncated(names)}{history.describe_lasting(indices)}",
            key=names[0],
            hint="check whether a rank or a stage still exports the parameters that the optimizer updates",
        )


def _list_lone(history: History, constant: set[str]) -> list[str]:
    """Return the matrices without a sibling, such as a head, that alone stood still, if they are known not to be frozen."""
    if not any(sync.trained is not None for sync in history.syncs):
        return []
    kinds = Counter(map(name_pattern, history.compared_names))
    still = set(trainable_matrices(constant))
    return sorted(still) if len(still) <= LONE and all(kinds[name_pattern(name)] == 1 for name in still) else []
