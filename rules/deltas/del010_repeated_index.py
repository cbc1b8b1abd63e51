"""A delta changes the same element twice.

## What it checks
No position occurs twice in a tensor of a delta. If the values are the same, this is a warning.

## Why it matters
With two values for one element, the order decides which one stays, and `index_copy_` on a GPU has none: two engines that apply
the same delta can have different weights.

## How to fix
Each element belongs to one rank: look for parameters that several ranks send, such as replicated ones in a gather over all ranks.

## When it can be wrong
The same value twice is harmless.

## Seen in
verl-project/verl verl/checkpoint_engine/delta_sync/sparse_gather.py (ranks' positions are concatenated), torch's page of
`index_copy_` ("may behave nondeterministically")
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain, Outcome
from ckptcheck.checkpoint.deltas.outcomes import are_applied, select_outcomes
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.text.formatting import count


@rule("DEL010", "repeated-index", severity="error", on="deltas", when=are_applied)
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    for delta, found in select_outcomes(chains, lambda outcome: _count(outcome) > 0):
        worst = {name: outcome for name, outcome in found.items() if outcome.effect and outcome.effect.contradicted}
        concerned = worst or found
        number = sum(map(_count, concerned.values()))
        yield Problem(
            f"{delta.name} names {count(number, 'element')} twice, "
            f"{'with different values' if worst else 'with the same value'}: {group_names(concerned)}",
            key=next(iter(concerned)),
            names=tuple(concerned),
            severity=None if worst else "warning",
            hint="look for parameters that several ranks send",
        )


def _count(outcome: Outcome) -> int:
    return outcome.effect.repeated + outcome.effect.contradicted if outcome.effect is not None else 0
