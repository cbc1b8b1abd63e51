"""A delta sets elements to NaN, which verl's loader takes for "unchanged".

## What it checks
No value of a flush of verl is NaN.

## Why it matters
verl fills what did not change with NaN and copies everything else. A value that is NaN is therefore never copied: the trainer has
a NaN, and the engine goes on with the old number, so that the run looks healthy until its loss is gone.

## How to fix
Stop the run and look for the step that made the first NaN. ckptcheck applies the value as it was sent.

## When it can be wrong
Never seen: a weight that is NaN is a fault in any case.

## Seen in
verl-project/verl verl/workers/rollout/sglang_rollout/delta_loader.py (`_masked_copy`)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.checkpoint.deltas.outcomes import are_applied, select_outcomes
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.text.formatting import count


@rule("DEL017", "lost-nan", severity="error", on="deltas", when=are_applied)
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    for delta, found in select_outcomes(chains, lambda outcome: outcome.effect and outcome.effect.nan):
        number = sum(outcome.effect.nan for outcome in found.values() if outcome.effect is not None)
        yield Problem(
            f"{delta.name} sets {count(number, 'element')} to NaN, and verl's loader leaves these as they were:"
            f" {group_names(found)}",
            key=next(iter(found)),
            names=tuple(found),
            hint="look for the step that made the first NaN",
        )
