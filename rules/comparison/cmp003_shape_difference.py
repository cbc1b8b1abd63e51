"""A tensor has another shape than its counterpart.

## What it checks
Counterparts have equal shapes, and tensors that a layout cuts into parts have the rows for it. Rows that pad the vocabulary of
a Megatron checkpoint are left out before. Where the numbers tell how the two are related, the finding says so: transposed,
padding that was not cut off, the shard of one rank alone, shards put together along the wrong axis.

## Why it matters
Loaders refuse it, or, where they only count elements, read rows for columns.

## How to fix
See which side the config agrees with (`ckptcheck scan`), and convert again.

## When it can be wrong
A vocabulary may be resized on purpose between the two.

## Seen in
verl-project/verl#7610 (buffers concatenated over ranks), transformers#47031 (experts transposed), ggml-org/llama.cpp#20200
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.comparison.comparison import Comparison
from ckptcheck.comparison.matching import Pair
from ckptcheck.comparison.naming import template, together
from ckptcheck.phrase import shape


@rule("CMP003", "shape-difference", severity="error", on="comparison")
def check(seen: Comparison) -> Iterator[Problem]:
    alike: dict[tuple[object, object, object, str], list[Pair]] = {}
    for pair in seen.accounts.shapes:
        why = seen.reshaped.get(pair.name, "")
        alike.setdefault((template(pair.name), pair.first.shape, pair.second.shape, why), []).append(pair)
    for (*_, why), (first, *more) in alike.items():
        who = f"{len(more) + 1:,} tensors are" if more else "it is"
        which = f": {together(pair.name for pair in (first, *more))}" if more else ""
        yield Problem(
            f"{who} {shape(first.first.shape)} in the first checkpoint and {shape(first.second.shape)} in the second"
            f"{f' ({why})' if why else ''}{which}",
            file=seen.second.files.get(first.names[1]),
            key=first.name,
            hint="ckptcheck scan says which of them fits its config",
        )
    for (number, name), why in seen.accounts.unfit.items():
        side = (seen.first, seen.second)[number]
        yield Problem(
            f"it cannot be taken apart as its name says: {why}",
            file=side.files.get(name),
            key=name,
            hint="ckptcheck scan says whether it fits its config",
        )
