"""The signature is of another model, or of another state of this one.

## What it checks
Some file, or some tensor, is as it was signed. If the signature covers two files or more and none of them is here as it was signed,
or if (nearly) no tensor of the signed manifest is, then one finding says so, and SIG003 to SIG005 are skipped.

## Why it matters
The signature is genuine and says nothing about these weights: it was copied from another release, or the weights were.

## How to fix
Fetch the signature that belongs to these weights.

## When it can be wrong
Every file was rewritten: a cast of a whole model is another model to its signer too.

## Seen in
No public case is known; `model_signing verify` lists every file of such a model instead.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.signatures.signature_check import SignatureCheck


@rule("SIG006", "other-model", severity="error", on="signature")
def check(signature: SignatureCheck) -> Iterator[Problem]:
    signature.require_signer()
    if signature.other_model:
        yield Problem(
            signature.other_model,
            file=signature.signature.name,
            hint="fetch the signature that belongs to these weights",
        )
