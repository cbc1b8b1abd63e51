"""Engines that apply the delta may not get the trainer's values: an element changes twice, or to NaN.

## What it checks
- No position occurs twice in a tensor of a delta. If the values are the same, this is a warning.
- No value of a flush of verl is NaN.

## Why it matters
With two values for one element, the order decides which one stays, and `index_copy_` on a GPU has none: two engines that apply
the same delta can have different weights. verl's loader fills what did not change with NaN and copies everything else, so it
never copies a value that is NaN: the trainer has a NaN, and the engine goes on with the old number, so that the run looks
healthy until its loss is gone.

## How to fix
Each element belongs to one rank: look for parameters that several ranks send, such as replicated ones in a gather over all
ranks. After a NaN, stop the run and look for the step that made the first one. ckptcheck applies the value as it was sent.

## When it can be wrong
The same value twice is harmless.

## Seen in
verl-project/verl verl/checkpoint_engine/delta_sync/sparse_gather.py (ranks' positions are concatenated) and
verl/workers/rollout/sglang_rollout/delta_loader.py (`_masked_copy`), torch's page of `index_copy_` ("may behave
nondeterministically")
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain, Outcome, are_applied, require_outcomes, select_outcomes
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.text.formatting import count


@rule("DEL010", "ambiguous-change", severity="error", on="deltas", when=are_applied)
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    for delta, found in select_outcomes(chains, lambda outcome: _count_repeated(outcome) > 0):
        worst = {name: outcome for name, outcome in found.items() if outcome.effect and outcome.effect.contradicted}
        concerned = worst or found
        number = sum(map(_count_repeated, concerned.values()))
        yield Problem(
            f"{delta.name} names {count(number, 'element')} twice, "
            f"{'with different values' if worst else 'with the same value'}: {group_names(concerned)}",
            key=next(iter(concerned)),
            names=tuple(concerned),
            severity=None if worst else "warning",
            hint="look for parameters that several ranks send",
        )
    for delta, found in select_outcomes(chains, lambda outcome: outcome.effect and outcome.effect.nan):
        number = sum(outcome.effect.nan for outcome in found.values() if outcome.effect is not None)
        yield Problem(
            f"{delta.name} sets {count(number, 'element')} to NaN, and verl's loader leaves these as they were:"
            f" {group_names(found)}",
            key=next(iter(found)),
            names=tuple(found),
            hint="look for the step that made the first NaN",
        )
    require_outcomes(chains)


def _count_repeated(outcome: Outcome) -> int:
    return outcome.effect.repeated + outcome.effect.contradicted if outcome.effect is not None else 0
