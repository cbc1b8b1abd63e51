"""A tensor does not have the checksum that the delta records, or the delta records none for it.

## What it checks
- After each delta, every tensor that it changes has the checksum of the file's `__metadata__`.
- The rule does not report consequences of a wrong base or a broken chain (DEL004).
- Each tensor in a file of a delta has an entry in the file's `__metadata__`.
- A flush of verl has the checksum that its sender computed.
- If verl sends a sweep to verify the state, every element has the value in the sweep.

## Why it matters
SGLang and ModelExpress stop here, and the engine keeps the old weights; SGLang also stops if a checksum is missing. An
engine that does not check computes with weights that the trainer never had.

## How to fix
Publish the delta again. If it comes back, compare the trainer's snapshot with a whole save: it has moved on without a
delta, or somebody published a delta of other bytes than the snapshot's. Write the checksum of each tensor's new bytes
into the metadata of the file that holds its change.

## When it can be wrong
With a single tensor in the first delta, the base may be another one. A reader of your own may do without checksums. Flushes of
verl have none for tensors.

## Seen in
THUDM/slime docker/patch/latest/sglang-pull_weights.patch (`checksum mismatch … after applying`, `want_checksums.get(name)`),
verl-project/verl verl/workers/rollout/sglang_rollout/delta_loader.py (`delta state verification FAILED`)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain, are_applied, require_outcomes, select_outcomes
from ckptcheck.checkpoint.deltas.flush import list_torn_flushes
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.text.formatting import count, join_truncated


@rule("DEL012", "checksum-mismatch", severity="error", on="deltas")
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    for delta in (delta for chain in chains for delta in chain.deltas):
        absent = [name for name in delta.changes if name not in delta.checksums]
        if absent and delta.checksum_format is not None:
            yield Problem(
                f"{delta.name} records no checksum for {len(absent):,} of its {count(len(delta.changes), 'tensor')}:"
                f" {group_names(absent)}",
                key=absent[0],
                names=tuple(absent),
                hint="write the checksum of each tensor's new bytes into the metadata of its file",
            )
        if torn := list_torn_flushes(delta):
            yield Problem(
                f"{delta.name}: {count(len(torn), 'flush', 'flushes')} of {len(delta.flushes):,} "
                f"{'has' if len(torn) == 1 else 'have'} another checksum than was sent: {join_truncated(torn)}",
                file=torn[0],
                hint="look for what changed the flush between the trainer and the engine",
            )
    if not are_applied(chains):
        raise Skip("no checksum was compared: without a base the deltas are not applied")
    for chain in chains:
        yield from _find_different(chain)
    for _, found in select_outcomes(chains, lambda outcome: outcome.checksum == "unread"):
        raise Skip(next(iter(found.values())).reason)
    require_outcomes(chains)


def _find_different(chain: DeltaChain) -> Iterator[Problem]:
    first = 0 if chain.is_on_wrong_base else min((found.at for found in chain.breaks), default=len(chain.deltas))
    known: set[str] = set()
    for at, delta in enumerate(chain.deltas[:first]):
        outcomes = chain.list_outcomes(at)
        wrong = [name for name, outcome in outcomes.items() if outcome.checksum == "different" and name not in known]
        known.update(wrong)
        if wrong:
            checked = sum(outcome.checksum in ("equal", "different") for outcome in outcomes.values())
            yield Problem(
                f"{delta.name}: {len(wrong):,} of {count(checked, 'tensor')} "
                f"{'has' if len(wrong) == 1 else 'have'} another checksum than it records: {group_names(wrong)}",
                key=wrong[0],
                names=tuple(wrong),
                hint="fetch or publish the delta again; if it comes back, compare the base, and the trainer's snapshot, with a"
                " whole save",
            )
        unequal = {name: outcome.effect.unequal for name, outcome in outcomes.items() if outcome.effect}
        names = [name for name, number in unequal.items() if number]
        if names:
            yield Problem(
                f"{delta.name}: {sum(unequal.values()):,} elements are not as its sweep says: {group_names(names)}",
                key=names[0],
                names=tuple(names),
                hint="compare the base, and the trainer's snapshot, with a whole save",
            )
