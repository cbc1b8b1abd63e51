"""The trainer stopped sending tensors, or the engine lost some.

## What it checks
- Each sync sends all the tensors of a sync before it, an entirely different set, or only those that train. So a tensor may be left
  out that never moved: the base of an adapter (LoRA), a part of the model that is left out as a whole (a vision tower, the
  embedding), a matrix that was sent at two steps with the same values.
- A second sync of the same step may send a part: a draft model has a sync of its own. So may one with a payload, as of a delta.
- Norms, biases and experts that are left out are a warning where all that is sent is new, and nothing where they are others at
  other syncs: such a job sends what changed.
- Where sender and engine kept a record each (`refit history SENDER ENGINE`): all that was sent arrived.
- The names of the engine's tensors stay the same. A tensor that only could not be read has not vanished: HIS011 reports it.

## Why it matters
- A tensor that is not sent keeps its old value in the engine, and nothing says so.

## How to fix
- Compare the two exports. The usual cause is a pipeline stage or a rank that failed to join.

## When it can be wrong
- A job may stop sending tensors that it freezes from then on, or send some layers once because they are frozen.

## Seen in
NVIDIA-NeMo/RL#3259, NVIDIA/Model-Optimizer#2427 (0 of 15 MTP tensors exported, exit code 0); radixark/miles#2520 (the frozen base
is sent once, and then its adapter alone)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Severity
from ckptcheck.runs.history.adapted_modules import find_adapted_module
from ckptcheck.runs.history.history import History, SyncPair, name_pattern, trainable_matrices
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "HIS007",
    "vanished-tensors",
    severity="error",
    on="history",
    when=lambda history: bool(history.pairs or history.arrived),
)
def check(history: History) -> Iterator[Problem]:
    yield from _find_lost_on_the_way(history)
    vanished: dict[tuple[str, ...], list[SyncPair]] = {}
    for pair in _list_shrunk(history):
        names = tuple(name for name in pair.before.sent if name not in pair.after.sent)
        if names := _drop_frozen(history, pair, names):
            vanished.setdefault(names, []).append(pair)
    of_deltas = {names for names, pairs in vanished.items() if _may_be_delta(names, pairs)}
    for names, pairs in vanished.items():
        if len(of_deltas) > 1 and names in of_deltas:
            continue
        lasting = history.describe_lasting([pair.index for pair in pairs])
        severity: Severity = "warning" if names in of_deltas else "error"
        beginning = f"the trainer no longer sends {len(names):,} of"
        yield _describe(history, pairs[0], names, beginning, "sent", lasting, severity)
    for pair in history.pairs:
        known = {*pair.after.held, *pair.after.unseen}
        names = tuple(name for name in pair.before.held if name not in known)
        if names and pair.after.held and pair.after.held.keys() <= pair.before.held.keys():
            yield _describe(history, pair, names, f"the engine no longer has {len(names):,} of", "held", "")


def _find_lost_on_the_way(history: History) -> Iterator[Problem]:
    """Describe what a sender sent and an engine did not get, where each kept a record."""
    found = [
        (index, sorted(name for name in history.lost_on_the_way(index) if any(name not in each for each in arrived)))
        for index, arrived in sorted(history.arrived.items())
    ]
    for indices, names in history.follow(found):
        total = count(len(history.syncs[indices[0]].sent), "tensor")
        yield Problem(
            f"{history.label(indices[0])}: {len(names):,} of {total} that were sent did not arrive at an engine:"
            f" {join_truncated(names)}{history.describe_lasting(indices)}",
            key=names[0],
            hint="look at the transport: the bucket that they are in, the names that the engine's loader skips",
        )


def _describe(
    history: History,
    pair: SyncPair,
    names: Sequence[str],
    beginning: str,
    side: str,
    lasting: str,
    severity: Severity = "error",
) -> Problem:
    total = count(len(getattr(pair.before, side)), "tensor")
    return Problem(
        f"{history.label(pair.index)}: {beginning} {total}: {join_truncated(names)}{lasting}",
        key=names[0],
        severity=severity,
        hint="compare what is exported now with what was exported before",
    )


def _may_be_delta(names: Sequence[str], pairs: Sequence[SyncPair]) -> bool:
    """Whether only norms, biases and experts are left out, which a step may leave as they are, and all that is sent is new."""
    return not any(trainable_matrices(names)) and all(
        name in pair.sent_changed for pair in pairs for name in pair.after.sent if name in pair.before.sent
    )


def _list_shrunk(history: History) -> Iterator[SyncPair]:
    """Yield each sync that sends a part of what an earlier one sent, with the last of these, if a step may lie in between."""
    last: dict[tuple[str, str, str], dict[frozenset[str], int]] = {}
    for index, sync in enumerate(history.syncs):
        if not sync.ok or not sync.sent or sync.payload:
            continue
        names = frozenset(sync.sent)
        sets = last.setdefault((sync.run, sync.group, sync.partial), {})
        wider = max((at for each, at in sets.items() if names < each), default=None)
        if wider is not None:
            pair = SyncPair(index, wider, history.syncs[wider], sync)
            if pair.is_step or not pair.has_count:
                yield pair
        sets[names] = index


def _drop_frozen(history: History, pair: SyncPair, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names without the tensors that have to be sent but once, as far as the record tells."""
    if any(find_adapted_module(name) for name in pair.after.sent):
        return tuple(name for name in names if name in history.changed_names or find_adapted_module(name))
    kinds = {name_pattern(name) for name in pair.after.sent}
    constant = set(trainable_matrices(history.constant_names))
    return tuple(
        name
        for name in names
        if name in history.changed_names
        or find_adapted_module(name)
        or (name_pattern(name) in kinds and name not in constant)
    )
