"""A delta is missing from the chain.

## What it checks
Each delta is for the version before it. If it is for another one, and the deltas in another order make no chain either, one is
missing, or it is of another run. Versions that count up show how many.

## Why it matters
SGLang refuses the delta (`out-of-order delta`). An engine that applies it nevertheless, such as one that syncs through verl's
flushes, keeps the old values of everything that only the missing delta changed.

## How to fix
Name the missing delta, or begin with the newest whole checkpoint. Where deltas are pruned, keep those after the newest whole one.

## When it can be wrong
The formats name versions as strings; two writers may name one version in different ways.

## Seen in
NovaSky-AI/SkyRL#1902 (a pruned chain), huggingface/trl#5937 (the steps between two syncs were never sent)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.checkpoint.deltas.outcomes import have_several
from ckptcheck.text.formatting import count


@rule("DEL004", "missing-link", severity="error", on="deltas", when=have_several)
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    for chain in chains:
        if chain.sorted_deltas is not None:
            continue
        for found in chain.breaks:
            delta = chain.deltas[found.at]
            if not found.at or delta.version in {other.version for other in chain.deltas[: found.at]}:
                continue
            yield Problem(
                f"{delta.name} is for version {delta.base_version}, and comes after version {found.before}"
                f"{_count_missing(found.before, delta.base_version)}",
                hint="name the deltas between, or begin with the newest whole checkpoint",
            )


def _count_missing(before: str, after: str | None) -> str:
    if after is None or not before.isdigit() or not after.isdigit() or int(after) <= int(before):
        return ""
    return f": {count(int(after) - int(before), 'delta')} of the chain missing"
