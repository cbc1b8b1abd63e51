"""Deltas do not follow the base or each other: one is missing or comes twice, or the base is another.

## What it checks
- Each delta is for the version before it; the first one for the base's, where the base names its version (its index, or the
  state.json that SGLang keeps). If it is for another one, and the deltas in another order make no chain either, one is missing, or
  it is of another run. Versions that count up show how many.
- The base is known by its content too: after the first delta most of its tensors have the checksum that the delta records. One
  tensor alone could as well be damaged, so it takes two.
- If the deltas, sorted by base_version and version, make one chain, they are named in that order.
- No two deltas of a chain lead to the same version. Where both overwrite, this is a warning: the second changes nothing.

## Why it matters
SGLang refuses a delta that is not for the version that it has (`out-of-order delta`), and stops at the checksum, as ModelExpress
does. An engine that applies it nevertheless, such as one that syncs through verl's flushes, keeps the old values of everything that
only the missing delta changed, or puts older values over newer ones. A change of xor that is applied twice undoes itself; on
another base it gives weights that no step produced.

## How to fix
Name the checkpoint that the trainer took its first snapshot from (slime's `--hf-checkpoint`, ModelExpress' seed), then each delta
once, in the order that the finding gives. If the base has the delta already, leave it out. Where deltas are pruned, begin with the
newest whole checkpoint. An engine that retries has to look which version it has first.

## When it can be wrong
- The formats name versions as strings; two writers may name one version in different ways. Two runs may use the same numbers:
  then the chain mixes them, which is worse.
- Most tensors of the first delta are damaged. Flushes of verl do not name their base; the rule is skipped there.

## Seen in
NovaSky-AI/SkyRL#1902 (a pruned chain replayed on version 0), huggingface/trl#5937 (the steps between two syncs were never sent),
THUDM/slime docker/patch/latest/sglang-pull_weights.patch (`out-of-order delta`), THUDM/slime docs/en/advanced/delta-weight-sync.md
("applying it twice reverts")
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.text.formatting import count

MOST_NAMED = 8
"""Deltas that a message names."""


@rule(
    "DEL004",
    "broken-chain",
    severity="error",
    on="deltas",
    when=lambda chains: any(chain.can_be_applied or len(chain.deltas) > 1 for chain in chains),
)
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    for chain in chains:
        if chain.can_be_applied:
            yield from _compare_base(chain)
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
    if len(chains) == 1 and chains[0].can_be_applied and chains[0].base_version is None:
        first = chains[0].deltas[0]
        if first.checksum_format is None:
            raise Skip(f"nothing in the format of {first.writer} says which base its deltas are for")


def _compare_base(chain: DeltaChain) -> Iterator[Problem]:
    first = chain.deltas[0]
    if any(found.at == 0 for found in chain.breaks):
        yield Problem(
            f"the base is version {chain.base_version}, and {first.name} is for version {first.base_version}",
            hint="name the base of the first delta, or the deltas between",
        )
    elif chain.is_on_wrong_base and chain.sorted_deltas in (None, chain.deltas):
        outcomes = {name: outcome for name, outcome in chain.list_outcomes(0).items() if outcome.checksum}
        wrong = tuple(name for name, outcome in outcomes.items() if outcome.checksum == "different")
        if all(outcomes[name].was_there for name in wrong):
            yield Problem(
                f"the base has {first.name} already: before it, {len(wrong):,} of its {count(len(outcomes), 'tensor')} have"
                " the checksum that it records",
                hint="leave the delta out",
                names=wrong,
            )
        else:
            yield Problem(
                f"after {first.name}, which is for version {first.base_version}, {len(wrong):,} of its"
                f" {count(len(outcomes), 'tensor')} have another checksum than it records",
                hint=f"{chain.base_target} is another checkpoint than the one that the delta was made from: name that one; if it"
                " is the one, the delta is damaged",
                names=wrong,
            )


def _find_missing(chain: DeltaChain) -> Iterator[Problem]:
    for found in chain.breaks:
        delta = chain.deltas[found.at]
        # A version that was there before is a repeated one.
        if not found.at or delta.version in {other.version for other in chain.deltas[: found.at]}:
            continue
        yield Problem(
            f"{delta.name} is for version {delta.base_version}, and comes after version {found.before}"
            f"{_count_missing(found.before, delta.base_version)}",
            hint="name the deltas between, or begin with the newest whole checkpoint; leave it out if it is of another run",
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
            hint="name each delta once; if the two differ, one is of a retry or of another run",
        )
