"""The trainer sent weights of an older step again.

## What it checks
- Take a matrix that changed at a sync. Its new value is not, bit for bit, the value it had at any earlier step (other
  than the one right before).

## Why it matters
- Training does not bring old values back. Buffers that are used in turns, a checkpoint that was loaded in between, or
  a second sender push an old policy under a new version.

## How to fix
- Look for another process that writes to the engine, and for buffers that are filled while they are sent.

## When it can be wrong
- A job may return to an older checkpoint on purpose and go on counting steps.

## Seen in
radixark/miles#1724 (a recovered engine serves an old sync), THUDM/slime#1695 (after a resume)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History, trainable_matrices
from ckptcheck.text.formatting import count, list_unless_single


@rule("HIS006", "stale-push", severity="error", on="history", when=lambda history: len(history.step_pairs) > 1)
def check(history: History) -> Iterator[Problem]:
    old_names: dict[int, dict[int, list[str]]] = {}
    for pair in history.step_pairs:
        found = old_names.setdefault(pair.index, {})
        for name in trainable_matrices(pair.sent_changed - history.sent_otherwise):
            digest = pair.after.sent[name]
            for index in range(pair.before_index - 1, -1, -1):
                older = history.syncs[index]
                if older.run == pair.after.run and older.sent.get(name) == digest:
                    found.setdefault(index, []).append(name)
                    break
    changed = {
        pair.index: sum(1 for _ in trainable_matrices(pair.sent_changed - history.sent_otherwise))
        for pair in history.step_pairs
    }
    causes = history.follow((at, [name for each in found.values() for name in each]) for at, found in old_names.items())
    for indices, concerned in causes:
        for index, names in sorted(old_names[indices[0]].items()):
            if names := [name for name in names if name in concerned]:
                is_everything = len(names) == changed[indices[0]]
                description = "every changed tensor" if is_everything else count(len(names), "tensor")
                yield Problem(
                    f"{history.label(indices[0])}: the trainer sent the values of {history.label(index)} for {description}"
                    f"{list_unless_single(names)}{history.describe_lasting(indices)}",
                    key=sorted(names)[0],
                    hint="look for another process that writes, and for buffers that are reused while they are sent",
                )
