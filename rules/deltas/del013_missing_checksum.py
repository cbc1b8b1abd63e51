"""A delta records no checksum for a tensor that it changes.

## What it checks
Each tensor in a file of a delta has an entry in the file's `__metadata__`.

## Why it matters
SGLang compares with what is not there, finds a mismatch and refuses the whole delta. A reader that skips the comparison applies
the change unchecked.

## How to fix
Write the checksum of each tensor's new bytes into the metadata of the file that holds its change.

## When it can be wrong
A reader of your own may do without checksums. Flushes of verl have none for tensors, and are left out.

## Seen in
THUDM/slime docker/patch/latest/sglang-pull_weights.patch (`want_checksums.get(name)`)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.checkpoint.deltas.outcomes import have_checksums
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.text.formatting import count


@rule("DEL013", "missing-checksum", severity="error", on="deltas", when=have_checksums)
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    for chain in chains:
        for delta in chain.deltas:
            absent = [name for name in delta.changes if name not in delta.checksums]
            if absent and delta.checksum_format is not None:
                yield Problem(
                    f"{delta.name} records no checksum for {len(absent):,} of its {count(len(delta.changes), 'tensor')}:"
                    f" {group_names(absent)}",
                    key=absent[0],
                    names=tuple(absent),
                    hint="write the checksum of each tensor's new bytes into the metadata of its file",
                )
