"""A delta changes a tensor that the base does not have.

## What it checks
Every tensor that a delta names is one of the base, by its full name.

## Why it matters
SGLang stops with a KeyError, and ModelExpress refuses the delta. A trainer that exports other names than the base has (the prefix
of a wrapper, an unfused projection, another model) sends updates that reach nothing.

## How to fix
Compare the names that the trainer exports with those of the base: `ckptcheck diff` of a whole save with the base shows both.

## When it can be wrong
The base lists its head as tied and stores none, and the trainer sends both: then the copy can be left out.

## Seen in
THUDM/slime slime/backends/megatron_utils/update_weight/update_weight_from_disk_delta.py (`seed: … absent from hf_checkpoint`)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.checkpoint.deltas.outcomes import have_base
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.text.formatting import count


@rule("DEL007", "foreign-tensor", severity="error", on="deltas", when=have_base)
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    for chain in chains:
        if chain.base is None:
            continue
        for delta in chain.deltas:
            foreign = [name for name in delta.changes if name not in chain.tensors]
            if foreign:
                yield Problem(
                    f"{delta.name} changes {count(len(foreign), 'tensor')} that the base does not have: {group_names(foreign)}",
                    key=foreign[0],
                    names=tuple(foreign),
                    hint="compare the names that the trainer exports with those of the base",
                )
