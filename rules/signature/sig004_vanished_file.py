"""A signed file no longer exists.

## What it checks
Every file that the signature covers is there. Where a manifest was signed, the finding names the tensors that the file held, and
says where they are now.

## Why it matters
What is left is not the model that was signed: a loader may start without the missing part. `model_signing verify` refuses it.

## How to fix
Fetch the file again. If it was removed on purpose, or the weights were split otherwise, sign again.

## When it can be wrong
A README that nobody needs was removed: the signature is broken all the same.

## Seen in
sigstore/model-transparency: `Missing files in model`
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.signatures.changed_tensors import find_changes
from ckptcheck.compare.signatures.signature_check import SignatureCheck
from ckptcheck.text.formatting import count, join_truncated

HINT = "fetch it again, or sign again if it was removed on purpose"


@rule("SIG004", "vanished-file", severity="error", on="signature")
def check(signature: SignatureCheck) -> Iterator[Problem]:
    signature.require_this_model()
    others = []
    for file in signature.files.missing:
        changes = find_changes(signature.verification, file) if signature.verification is not None else None
        if changes is not None and changes.number:
            yield Problem(
                f"it was signed and is not there: {changes.describe()}",
                file,
                min(changes.names, default=None),
                HINT,
                names=changes.names,
            )
        else:
            others.append(file)
    if others:
        yield Problem(
            f"{count(len(others), 'file was', 'files were')} signed and "
            f"{'is' if len(others) == 1 else 'are'} not there: {join_truncated(others)}",
            others[0],
            hint=HINT,
            names=tuple(others),
        )
