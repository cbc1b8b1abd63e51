"""The deltas do not follow each other: one is missing, one comes twice, or they are in another order.

## What it checks
- Each delta is for the version before it. If it is for another one, and the deltas in another order make no chain either, one
  is missing, or it is of another run. Versions that count up show how many.
- If the deltas, sorted by base_version and version, make one chain, they are named in that order.
- No two deltas of a chain lead to the same version. Where both overwrite, this is a warning: the second changes nothing.

## Why it matters
SGLang refuses a delta that is not for the version that it has (`out-of-order delta`). An engine that applies it nevertheless,
such as one that syncs through verl's flushes, keeps the old values of everything that only the missing delta changed, or puts
older values over newer ones. A change of xor that is applied twice undoes itself.

## How to fix
Name each delta once, in the order that the finding gives. Where deltas are pruned, begin with the newest whole checkpoint. An
engine that retries has to look which version it has first.

## When it can be wrong
The formats name versions as strings; two writers may name one version in different ways. Two runs may use the same numbers:
then the chain mixes them, which is worse.

## Seen in
NovaSky-AI/SkyRL#1902 (a pruned chain), huggingface/trl#5937 (the steps between two syncs were never sent), THUDM/slime
docker/patch/latest/sglang-pull_weights.patch (`out-of-order delta`), THUDM/slime docs/en/advanced/delta-weight-sync.md
("applying it twice reverts")
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.text.formatting import count

MOST_NAMED = 8
"""Deltas that a message names."""


@rule(
    "DEL004",
    "broken-chain",
    severity="error",
    on="deltas",
    when=lambda chains: any(len(chain.deltas) > 1 for chain in chains),
)
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    for chain in chains:
        if chain.sorted_deltas is None:
            yield from _find_missing(chain)
        elif chain.sorted_deltas != chain.deltas:
            order = ", ".join(delta.name for delta in chain.sorted_deltas[:MOST_NAMED])
            more = f" and {len(chain.deltas) - MOST_NAMED:,} more" if len(chain.deltas) > MOST_NAMED else ""
            yield Problem(
                f"the deltas are not in the order of their versions, which is {order}{more}",
                hint="name them in this order",
            )
        yield from _find_repeated(chain)


def _find_missing(chain: DeltaChain) -> Iterator[Problem]:
    for found in chain.breaks:
        delta = chain.deltas[found.at]
        # At the beginning the base is another one (DEL003); a version that was there before is a repeated one.
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


def _find_repeated(chain: DeltaChain) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for at, delta in enumerate(chain.deltas):
        if delta.version is None or (before := seen.setdefault(delta.version, at)) == at:
            continue
        changes = [change for part in delta.changes.values() for change in part]
        is_harmless = bool(changes) and all(change.encoding == "overwrite" for change in changes)
        yield Problem(
            f"{delta.name} leads to version {delta.version}, and so does {chain.deltas[before].name} before it",
            severity="warning" if is_harmless else None,
            hint="name each delta once",
        )
