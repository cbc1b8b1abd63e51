"""A delta names tensors and changes nothing in them.

## What it checks
Every tensor that a delta names has at least one element that differs from before. A delta that names no tensor is left out: the
step changed nothing.

## Why it matters
Every writer leaves a tensor out that did not change. Named and unchanged means that the base has the delta already, or that the
sender compares with the wrong copy of the weights.

## How to fix
Look which version the base has, and whether the sender's copy moves on at each sync.

## When it can be wrong
A delta is applied once more on purpose, which overwrite allows.

## Seen in
NovaSky-AI/SkyRL#2142 (a delta engine with stale weights)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.checkpoint.deltas.outcomes import are_applied, select_outcomes
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.text.formatting import count


@rule("DEL016", "idle-change", severity="warning", on="deltas", when=are_applied)
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    for delta, found in select_outcomes(chains, lambda outcome: outcome.effect and not outcome.effect.elements):
        idle = [name for name in found if all(change.encoding != "verify" for change in delta.changes[name])]
        if idle:
            yield Problem(
                f"{delta.name} names {count(len(idle), 'tensor')} of {len(delta.changes):,} in which it changes nothing:"
                f" {group_names(idle)}",
                key=idle[0],
                names=tuple(idle),
                hint="look which version the base has, and whether the sender's copy moves on",
            )
