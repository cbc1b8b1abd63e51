"""The manifest that was named says something else than the one that was signed.

## What it checks
Where `verify` is given a manifest and a signature, and the signature covers a manifest of its own: both list the same tensors, and
both state the same origin of the weights.

## Why it matters
Nobody vouches for the manifest that was named. What it says beyond the signed one is a claim, such as another training that the
weights are said to come from.

## How to fix
Use the signed manifest, `ckptcheck.manifest.json` in the folder of the model.

## When it can be wrong
You wrote a newer manifest on purpose, with `--made-from`: sign the model again.

## Seen in
No public case is known.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.signatures.sign import MANIFEST_NAME
from ckptcheck.compare.signatures.signature_check import SignatureCheck
from ckptcheck.text.formatting import count, join_truncated

HINT = f"use the signed one, {MANIFEST_NAME} in the folder of the model"


@rule(
    "SIG010",
    "another-manifest",
    severity="error",
    on="signature",
    when=lambda signature: signature.named is not None and signature.manifest is not None,
)
def check(signature: SignatureCheck) -> Iterator[Problem]:
    signature.require_signer()
    if names := signature.differing_tensors:
        yield Problem(
            f"the manifest that was named is not the signed one: {count(len(names), 'tensor differs', 'tensors differ')}: "
            f"{join_truncated(names)}",
            file=MANIFEST_NAME,
            key=names[0],
            hint=HINT,
            names=tuple(names),
        )
    assert signature.named is not None
    assert signature.manifest is not None
    if signature.named.manifest.made_from != signature.manifest.made_from:
        yield Problem(
            "the manifest that was named states another origin of the weights than the signed one",
            file=MANIFEST_NAME,
            hint=HINT,
        )
