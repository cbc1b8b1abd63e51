"""The trainer sent weights of an older step again.

## What it checks
- Take a matrix that changed at a sync. Its new value is not, bit for bit, the value it had at any earlier step (other
  than the one right before).

- A process that goes on at a step that another one of the record has synced sends what that one sent: the checkpoint of that step.
  Other values are a warning, and those of another step an error. Adapters that are merged anew at each sync are left out.

## Why it matters
- Training does not bring old values back. Buffers that are used in turns, a checkpoint that was loaded in between, or
  a second sender push an old policy under a new version.

## How to fix
- Look for another process that writes to the engine, and for buffers that are filled while they are sent.
- After a resume: check whether the model was loaded with the optimizer and the step, and from which checkpoint.

## When it can be wrong
- A job may return to an older checkpoint on purpose and go on counting steps.

## Seen in
radixark/miles#1724 (a recovered engine serves an old sync), THUDM/slime#1695 (after a resume)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History, trainable_matrices
from ckptcheck.runs.history.record import SyncRecord
from ckptcheck.text.formatting import count, list_unless_single


@rule(
    "HIS006",
    "stale-push",
    severity="error",
    on="history",
    when=lambda history: len(history.step_pairs) > 1 or len({sync.run for sync in history.syncs}) > 1,
)
def check(history: History) -> Iterator[Problem]:
    yield from _find_restarts(history)
    old_names: dict[int, dict[int, list[str]]] = {}
    # a second sync of one step may bring the values of an older one back, too
    pairs = [pair for pair in history.pairs if pair.is_step or None is not pair.before.step == pair.after.step]
    for pair in pairs:
        found = history.find_older(pair)
        after = history.syncs[pair.index + 1 : pair.index + 2]
        if found or not after or after[0].step is None or after[0].step != pair.after.step:
            old_names[pair.index] = found  # else the next sync is of this step, too, and tells
    changed = {
        pair.index: sum(1 for _ in trainable_matrices(pair.sent_changed - history.sent_otherwise)) for pair in pairs
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


def _find_restarts(history: History) -> Iterator[Problem]:
    """Describe each process that goes on at a step and does not have the weights that were sent at that step before."""
    begun: set[str] = set()
    for index, sync in enumerate(history.syncs):
        if sync.run in begun or not (sync.ok and sync.sent):
            continue
        begun.add(sync.run)
        before = next(
            (
                earlier
                for earlier in reversed(history.syncs[:index])
                if earlier.run != sync.run and earlier.ok and earlier.step == sync.step and earlier.sent
            ),
            None,
        )
        if (
            before is None
            or not _goes_on(history, before.run, sync)
            or before.nbytes != sync.nbytes
            or (sync.merged, before.merged) != (None, None)
            or sync.frozen
        ):
            continue
        names = [name for name, value in sync.sent.items() if before.sent.get(name, value) != value]
        if not names:
            continue
        origin = next(
            (
                other
                for other in range(index)
                if all(history.syncs[other].sent.get(name) == sync.sent[name] for name in names)
            ),
            None,
        )
        yield Problem(
            f"{history.label(index)}: the trainer was started again and did not go on from {history.label(index)}:"
            f" {count(len(names), 'tensor')} {'has' if len(names) == 1 else 'have'} other values than it sent then"
            f"{list_unless_single(names)}" + (f"; those of {history.label(origin)}" if origin is not None else ""),
            key=names[0],
            severity="warning" if origin is None else "error",
            hint="check whether the model was loaded with the optimizer and the step, and from which checkpoint",
        )


def _goes_on(history: History, run: str, sync: SyncRecord) -> bool:
    """Whether a sync is of a later step than the first of an earlier process: a job that begins anew begins at the same step."""
    steps = [each.step for each in history.syncs if each.run == run and each.step is not None]
    return sync.step is not None and sync.step > steps[0]
