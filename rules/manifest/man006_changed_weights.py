"""Weights that are stored in another layout differ from those of the manifest.

## What it checks
Where a checkpoint holds the weights of the manifest in another layout (MAN005), each is compared under its plain name: dtype, shape
and digest. Weights that changed, are missing or are new have one finding each.

## Why it matters
A conversion is meant to keep every bit. One that drops a layer, mixes up queries and keys or casts a tensor yields a checkpoint
that loads everywhere and computes something else.

## How to fix
`ckptcheck diff` compares the two checkpoints and names the cause. If the change is intended, write a new manifest.

## When it can be wrong
An export in another dtype or a quantized one holds other weights than the run that it was made of: write a manifest of it.

## Seen in
THUDM/slime#2270 (converters that dropped frozen tensors)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.verification import Verification
from ckptcheck.text.formatting import count, join_truncated

HINT = "ckptcheck diff names the cause; write a new manifest if the change is intended"


@rule(
    "MAN006", "changed-weights", severity="error", on="manifest", when=lambda verification: verification.is_other_layout
)
def check(verification: Verification) -> Iterator[Problem]:
    weights = verification.changed_weights
    for names, what in (
        (
            weights.changed,
            ("weight has", "weights have", "other values, in another layout, than the manifest recorded"),
        ),
        (weights.reformed, ("weight has", "weights have", "another dtype or shape than the manifest recorded")),
        (weights.missing, ("weight of the manifest is", "weights of the manifest are", "missing in the other layout")),
        (weights.new, ("weight is", "weights are", "in the other layout and not in the manifest")),
    ):
        if names:
            one, several, rest = what
            yield Problem(
                f"{count(len(names), one, several)} {rest}: {join_truncated(names)}",
                key=names[0],
                names=tuple(names),
                hint=HINT,
            )
