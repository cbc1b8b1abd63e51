"""The weights of the manifest are stored in another layout: the same bit for bit, or not.

## What it checks
The checkpoint lacks names of the manifest and has their weights in another layout: an export of a Megatron run, joined or split
projections or experts. The rule compares dtype, shape and digest of each weight under its plain name. If all are equal, an info
says so, with the identity of the set (`ckptcheck identity`). Changed, missing and new weights have one error each.

## Why it matters
The rule proves that a conversion lost nothing. A conversion that drops a layer, mixes up queries and keys or casts a tensor yields
a checkpoint that loads everywhere and computes something else. The comparison leaves out everything but weights, such as the state
of the optimizer: an export cannot resume a training.

## How to fix
Nothing, if the conversion was intended and all are equal: write a new manifest, so that the files of the new layout are
verified byte for byte. Else `ckptcheck diff` compares the two checkpoints and names the cause.

## When it can be wrong
An export in another dtype or a quantized one holds other weights than its run: write a manifest of it. Two
different sets of weights have one identity with a probability of about 2^-62. The manifest is not signed: who can write the
checkpoint can often write the manifest too.

## Seen in
THUDM/slime#2270 (converters that dropped frozen tensors)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.verification import Verification
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "MAN005", "another-layout", severity="error", on="manifest", when=lambda verification: verification.is_other_layout
)
def check(verification: Verification) -> Iterator[Problem]:
    weights = verification.changed_weights
    for names, start, rest in (
        (
            weights.changed,
            ("weight has", "weights have"),
            "other values, in another layout, than the manifest recorded",
        ),
        (weights.reformed, ("weight has", "weights have"), "another dtype or shape than the manifest recorded"),
        (
            weights.missing,
            ("weight of the manifest is", "weights of the manifest are"),
            "missing in the other layout",
        ),
        (weights.new, ("weight is", "weights are"), "in the other layout and not in the manifest"),
    ):
        if names:
            yield Problem(
                f"{count(len(names), *start)} {rest}: {join_truncated(names)}",
                key=names[0],
                names=tuple(names),
                hint="ckptcheck diff names the cause; write a new manifest if the change is intended",
            )
    if weights.found:
        return
    manifest = verification.manifest
    states = sum(not manifest.list_parts(name) for name in manifest.tensors.keys() - verification.current.keys())
    beside = f"; {count(states, 'tensor', 'tensors')} of the manifest that {'is' if states == 1 else 'are'} no weight"
    beside += f"{'' if states == 1 else 's'} {'is' if states == 1 else 'are'} gone"
    yield Problem(
        f"{count(len(manifest.weights), 'weight')} of the manifest {'is' if len(manifest.weights) == 1 else 'are'} here in another "
        f"layout, bit for bit the same: identity {manifest.identity}{beside if states else ''}",
        severity="info",
        hint="nothing to do if the conversion was intended; write a new manifest to verify the new files",
    )
