"""A change cannot be applied: no such tensor, another size, or damaged data.

## What it checks
- Every tensor that a delta names is one of the base, by its full name.
- A change of xor has exactly the bytes of its tensor, and one of overwrite at most a position and a value for each byte. A
  flush of verl names the tensor's dtype and shape, and a dense one has all its bytes.
- Every position of overwrite is below the bytes of its tensor; every index of verl is from 0 up to its elements.
- A position has 32 bits: one of overwrite counts bytes and reaches 4,294,967,296 of them; one of verl is signed and counts
  elements, so it reaches 2,147,483,648. No larger tensor has positions.
- Each change is a whole zstd frame, and has as many positions and values as it announces. Each file can be read to its end.

## Why it matters
SGLang stops with a KeyError, an IndexError or an error of zstd, or applies a change that is too short to the beginning of the
tensor; ModelExpress refuses the delta. verl's loader casts a flush of another dtype, so that the engine's values are rounded
where the trainer's are not, and on a GPU `index_copy_` stops the engine with an assertion. For a tensor above 4 GB the writer
of overwrite wraps around without a word. A tensor whose change cannot be applied has no value, so the verdict is never clean.

## How to fix
Take the base and the deltas from one run: after a conversion (other names, another dtype, a padded vocabulary, fused
projections) earlier deltas no longer fit. Compare the names that the trainer exports with those of the base: `ckptcheck
diff` of a whole save with the base shows both. Publish or download a damaged delta again.

## When it can be wrong
The base lists its head as tied and stores none, and the trainer sends both: then the copy can be left out. verl may send a
dtype that differs from that of the base on disk, and the engine casts both: name a base in the dtype that is sent. A frame with
a window of more than 8 MB (zstd levels above 19) is refused; no writer known makes one.

## Seen in
THUDM/slime slime/backends/megatron_utils/update_weight/update_weight_from_disk_delta.py (`seed: … absent from hf_checkpoint`)
and slime/utils/disk_delta.py (`astype("<u4")`), ai-dynamo/modelexpress modelexpress_rl/train/methods/canonical_delta.py
(`canonical tensor … changed byte size`), ai-dynamo/modelexpress#710 (refusals of torn artifacts), verl-project/verl
verl/checkpoint_engine/delta_checkpoint_engine.py (`exceeds the int32 position encoding`)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain, require_outcomes, select_outcomes
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.text.formatting import count

UNREADABLE = ("cannot be decompressed or decoded", "publish or download the delta again")
KINDS = {
    "size": ("cannot take the change", "take the base and the delta from the same run"),
    "index": ("cannot take the change", "look for the shape that the sender computes positions with"),
    "width": ("cannot be changed by position", "use the encoding xor"),
    "damaged": UNREADABLE,
    "unread": UNREADABLE,
}
"""Kind of `apply.BrokenChange` → what is wrong with the tensors, and what to do."""


@rule(
    "DEL007",
    "inapplicable-change",
    severity="error",
    on="deltas",
    when=lambda chains: any(chain.base is not None for chain in chains),
)
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    for chain in chains:
        for delta in chain.deltas if chain.base is not None else ():
            foreign = [name for name in delta.changes if name not in chain.tensors and name not in chain.unfit]
            if foreign:
                yield Problem(
                    f"{delta.name} changes {count(len(foreign), 'tensor')} that the base does not have: {group_names(foreign)}",
                    key=foreign[0],
                    names=tuple(foreign),
                    hint="compare the names that the trainer exports with those of the base",
                )
    for delta, broken in select_outcomes(chains, lambda outcome: outcome.broken in KINDS):
        for state, hint in dict.fromkeys(KINDS.values()):
            found = {name: outcome for name, outcome in broken.items() if KINDS[outcome.broken] == (state, hint)}
            if not found:
                continue
            first = next(iter(found))
            reason = f": {found[first].reason}" if len(found) == 1 else f"; {first}: {found[first].reason}"
            yield Problem(
                f"{delta.name}: {count(len(found), 'tensor')} {state}: {group_names(found)}{reason}",
                key=first,
                names=tuple(found),
                hint=hint,
            )
    require_outcomes(chains)
