"""A delta changes half of the elements and more, or names tensors in which it changes nothing.

## What it checks
- Of the BF16 and F16 tensors that a delta names, fewer than half of the elements change. Models of fewer than 100,000 such
  elements are left out.
- Every tensor that a delta names has at least one element that differs from before. A delta that names no tensor is left out:
  the step changed nothing.

## Why it matters
A step of reinforcement learning changes 1 to 3 % of the elements of a model in BF16: the others move by less than half a unit
in the last place. If half or more change, the delta is against another base, lacks steps, or comes from a learning rate that is
far too large; and a delta this dense is longer than the weights. Every writer leaves out unchanged tensors: if a named tensor does
not change, the base has the delta already, or the sender compares with the wrong copy of the weights.

## How to fix
Check the version of the base, and that the sender updates its copy at each sync. If a dense step is intended, send all weights.

## When it can be wrong
Pretraining, a first step without a warm-up, and supervised training at a learning rate of 1e-4 and more change most elements. You
may apply a delta once more on purpose, which overwrite allows.

## Seen in
verl-project/verl docs/advance/delta_weight_sync.md (0.9 to 3 % of the bytes change), areal-project/AReaL#1125 (98 % stay),
NovaSky-AI/SkyRL#2142 (a delta engine with stale weights)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain, are_applied, require_outcomes, select_outcomes
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.text.formatting import count

SHARE = 0.5
LEAST = 100_000
"""Elements below which a share says nothing."""


@rule("DEL015", "implausible-change", severity="warning", on="deltas", when=are_applied)
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    for chain in chains:
        for at, delta in enumerate(chain.deltas):
            total = changed = 0
            for name, outcome in chain.list_outcomes(at).items():
                if outcome.effect is not None and chain.tensors[name].dtype in ("BF16", "F16"):
                    total += chain.tensors[name].span.nbytes // 2
                    changed += outcome.effect.elements
            is_dense = all(change.encoding == "dense" for part in delta.changes.values() for change in part)
            if total >= LEAST and changed >= total * SHARE and not is_dense:
                yield Problem(
                    f"{delta.name} changes {changed / total:.0%} of the elements of its tensors",
                    hint="compare the trainer's snapshot with what the engine has",
                )
    for delta, found in select_outcomes(chains, lambda outcome: outcome.effect and not outcome.effect.elements):
        idle = [name for name in found if all(change.encoding != "verify" for change in delta.changes[name])]
        if idle:
            yield Problem(
                f"{delta.name} names {count(len(idle), 'tensor')} of {len(delta.changes):,} in which it changes nothing:"
                f" {group_names(idle)}",
                key=idle[0],
                names=tuple(idle),
                hint="check which version the base has, and whether the sender's copy moves on",
            )
    require_outcomes(chains)
