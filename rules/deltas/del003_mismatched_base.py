"""The base is not the checkpoint that the first delta is for.

## What it checks
- Where the base names its version (its index, or the state.json that SGLang keeps), the first delta is for that version.
- The base is known by its content: after the first delta most of its tensors have the checksum that the delta records. One
  tensor alone could as well be damaged, so it takes two.

## Why it matters
An xor delta on another base gives weights that no step produced, and an overwrite delta leaves old values between new ones.
SGLang and ModelExpress stop at the checksum. verl's flushes carry no checksum of the result, and change any base.

## How to fix
Name the checkpoint that the trainer took its first snapshot from: slime's `--hf-checkpoint`, ModelExpress' seed. If the base has
the delta already, leave the delta out.

## When it can be wrong
Most tensors of the delta are damaged. The rule skips flushes of verl, because they do not name their base.

## Seen in
NovaSky-AI/SkyRL#1902 (a pruned chain replayed on version 0)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain, are_applied
from ckptcheck.text.formatting import count


@rule("DEL003", "mismatched-base", severity="error", on="deltas", when=are_applied)
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    for chain in chains:
        first = chain.deltas[0]
        if any(found.at == 0 for found in chain.breaks):
            yield Problem(
                f"the base is version {chain.base_version}, and {first.name} is for version {first.base_version}",
                hint="name the base of the first delta, or the deltas between",
            )
        elif chain.is_on_wrong_base and chain.sorted_deltas in (None, chain.deltas):
            outcomes = [outcome for outcome in chain.list_outcomes(0).values() if outcome.checksum]
            wrong = [outcome for outcome in outcomes if outcome.checksum == "different"]
            if all(outcome.was_there for outcome in wrong):
                text = (
                    f"the base has {first.name} already: before it, {len(wrong):,} of its {count(len(outcomes), 'tensor')} have"
                    " the checksum that it records"
                )
                hint = "leave the delta out"
            else:
                text = (
                    f"after {first.name}, which is for version {first.base_version}, {len(wrong):,} of its"
                    f" {count(len(outcomes), 'tensor')} have another checksum than it records"
                )
                hint = f"{chain.base_target} is another checkpoint than the one that the delta was made from: name that one"
            yield Problem(text, hint=hint)
        elif len(chains) == 1 and first.checksum_format is None and chain.base_version is None:
            raise Skip(f"nothing in the format of {first.writer} says which base its deltas are for")
