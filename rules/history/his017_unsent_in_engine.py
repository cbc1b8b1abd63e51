"""A tensor is never sent although others of its kind are, so that the engine keeps its first values.

## What it checks
- Where the watch knows what the trainer trains (TRL): each such tensor that the engine has is sent at some sync.
- Every tensor of the engine that never changed, over two steps or more that changed others of its layer, is one that the
  trainer sends at some sync.
- Where the record has nothing of the engine, the names tell: one layer of four or more lacks a matrix that all others send.
- A part of a fused tensor counts as a tensor: `k_proj` in `qkv_proj`, where the record has the parts.
- The rule does not report a tensor if the trainer sends no tensor of its kind, or none of its layer: that is how a job
  freezes a part of the model on purpose. Nor does it if the names change from sync to sync, as in deltas.

## Why it matters
- The engine computes for ever with the values of its start. No update fails, and the fused tensor changes with its other
  parts.

## How to fix
- Compare the exported names with those of the checkpoint. The usual cause is a wrong name for one kind of layer, or a rank
  that left out its share.

## When it can be wrong
- A job that trains and sends some matrices of a layer, and freezes others of it; a model of which one layer alone has no such
  matrix.

## Seen in
NVIDIA/Model-Optimizer#2427 (0 of 15 MTP tensors exported, exit code 0)
"""

from collections import Counter
from collections.abc import Collection, Iterator
from functools import lru_cache

from ckptcheck import Problem, rule
from ckptcheck.consumers.engine_tensors import find_source_tensors
from ckptcheck.runs.history.history import SMALL, History, name_pattern
from ckptcheck.text.formatting import count, join_truncated

STEPS = 2
LAYERS = 4
"""Least number of layers of which one can be the odd one."""


@rule(
    "HIS017",
    "unsent-in-engine",
    severity="warning",
    on="history",
    when=lambda history: any(sync.sent for sync in history.syncs),
)
def check(history: History) -> Iterator[Problem]:
    known = sorted(_list_untold(history))
    if known:
        index = next(index for index, sync in enumerate(history.syncs) if sync.unsent)
        were = "was" if len(known) == 1 else "were"
        yield Problem(
            f"{history.label(index)}: {count(len(known), 'tensor')} that the trainer trains {were} never sent, so that the engine"
            f" keeps its first values: {join_truncated(known)}",
            key=known[0],
            severity="error",
            hint="compare the names that are exported with those of the trainer's parameters",
        )
    sent = history.names_sent
    if known or not sent or any(sync.partial for sync in history.syncs):
        return
    if not any(sync.held for sync in history.syncs):
        if not any(sync.group for sync in history.syncs):
            yield from _find_gap(sent)
        return
    kinds = {name_pattern(name) for name in sent}
    compared: dict[str, int] = {}
    for pair in history.step_pairs:
        layers = {_find_layer(name) for name in pair.sent_changed} - {""}
        for key in pair.after.held.keys() & pair.before.held.keys():
            name = key.partition("/")[2]
            if name not in sent and name_pattern(name) in kinds and _find_layer(name) in layers:
                compared[key] = compared.get(key, 0) + 1
    changed = frozenset[str]().union(*(pair.held_changed for pair in history.step_pairs))
    keys = sorted(
        key
        for key, steps in compared.items()
        if steps >= STEPS and key not in changed and not find_source_tensors(key.partition("/")[2], sent)
    )
    if keys:
        names = [key.partition("/")[2] for key in keys]
        yield Problem(
            f"{count(len(names), 'tensor')} of the engine {'was' if len(names) == 1 else 'were'} never sent and never changed,"
            f" although others of the kind are sent: {join_truncated(names)}",
            key=names[0],
            hint="compare the names that are exported with those of the checkpoint",
        )


def _list_untold(history: History) -> set[str]:
    """Return what is trained and was sent at no sync, as far as the engine has it."""
    unsent = {name for sync in history.syncs for name in sync.unsent}
    return history.keep_held(unsent - {name for sync in history.syncs for name in sync.sent})


def _find_gap(sent: Collection[str]) -> Iterator[Problem]:
    """Describe the matrices that one layer of a stack lacks and all others have."""
    stacks: dict[str, dict[str, set[str]]] = {}
    for name in sent:
        if layer := _find_layer(name):
            stacks.setdefault(name_pattern(layer), {}).setdefault(layer, set()).add(name.removeprefix(f"{layer}."))
    for layers in stacks.values():
        kinds = Counter(map(frozenset, layers.values()))
        (usual, _), *others = kinds.most_common()
        if len(layers) < LAYERS or len(others) != 1 or others[0][1] != 1 or not others[0][0] < usual:
            continue
        layer = next(layer for layer, names in layers.items() if names == others[0][0])
        lacking = sorted(f"{layer}.{name}" for name in usual - others[0][0])
        if any(not SMALL.search(name) for name in lacking):
            yield Problem(
                f"{count(len(lacking), 'tensor')} of {layer} {'was' if len(lacking) == 1 else 'were'} never sent, and"
                f" all {len(layers) - 1:,} other layers are sent theirs: {join_truncated(lacking)}",
                key=lacking[0],
                hint="compare the names that are exported with those of the checkpoint",
            )


@lru_cache(maxsize=1 << 16)
def _find_layer(name: str) -> str:
    """Return the name of a tensor's layer, which ends with its first number; "" where it is in none."""
    parts = name.split(".")
    at = next((at for at, part in enumerate(parts[1:-1], 1) if part.isdecimal()), 0)
    return ".".join(parts[: at + 1]) if at else ""
