"""The weights are those of the manifest, stored in another layout.

## What it checks
Tensors of the manifest are gone by name, and every weight that they held is there: a Megatron run was exported, projections or
experts were joined or split. The weights are compared under their plain names, by the identity of the set (`ckptcheck identity`),
and all are equal.

## Why it matters
It is the proof that a conversion lost nothing. What is no weight, such as the state of the optimizer, is not part of it: an export
cannot resume a training.

## How to fix
Nothing, if the conversion was intended. Write a new manifest, so that the files of the new layout are verified byte for byte.

## When it can be wrong
Two different sets of weights have one identity with a probability of about 2^-62. The manifest is not signed: who can write the
checkpoint can often write the manifest too.

## Seen in
THUDM/slime#2270 (converters that dropped frozen tensors)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.compare.verification import Verification
from ckptcheck.text.formatting import count


@rule(
    "MAN005", "another-layout", severity="info", on="manifest", when=lambda verification: verification.is_other_layout
)
def check(verification: Verification) -> Iterator[Problem]:
    if verification.changed_weights.found:
        raise Skip("other weights are stored in the other layout, see MAN006")
    manifest = verification.manifest
    states = sum(not manifest.list_parts(name) for name in manifest.tensors.keys() - verification.current.keys())
    beside = f"; {count(states, 'tensor', 'tensors')} of the manifest that {'is' if states == 1 else 'are'} no weight"
    beside += f"{'' if states == 1 else 's'} {'is' if states == 1 else 'are'} gone"
    yield Problem(
        f"{count(len(manifest.weights), 'weight')} of the manifest {'is' if len(manifest.weights) == 1 else 'are'} here in another "
        f"layout, bit for bit the same: identity {manifest.identity}{beside if states else ''}",
        hint="nothing to do if the conversion was intended; write a new manifest to verify the new files",
    )
