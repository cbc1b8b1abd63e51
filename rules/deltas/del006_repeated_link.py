"""A version is in the chain twice.

## What it checks
No two deltas of a chain lead to the same version. Where both overwrite, this is a warning: the second changes nothing.

## Why it matters
A change of xor that is applied twice undoes itself: the engine is back at the version before.

## How to fix
Name each delta once. An engine that retries has to look which version it has first.

## When it can be wrong
Two writers, or two runs, may use the same numbers: then the chain mixes them, which is worse.

## Seen in
THUDM/slime docs/en/advanced/delta-weight-sync.md ("applying it twice reverts")
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.checkpoint.deltas.outcomes import have_several


@rule("DEL006", "repeated-link", severity="error", on="deltas", when=have_several)
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    for chain in chains:
        seen: dict[str, int] = {}
        for at, delta in enumerate(chain.deltas):
            if delta.version is None:
                continue
            if (before := seen.setdefault(delta.version, at)) != at:
                changes = [change for part in delta.changes.values() for change in part]
                is_harmless = bool(changes) and all(change.encoding == "overwrite" for change in changes)
                yield Problem(
                    f"{delta.name} leads to version {delta.version}, and so does {chain.deltas[before].name} before it",
                    severity="warning" if is_harmless else None,
                    hint="name each delta once",
                )
