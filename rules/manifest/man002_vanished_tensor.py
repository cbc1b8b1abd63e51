"""A tensor of the manifest no longer exists.

## What it checks
- Every tensor of the manifest still exists under its name.
- If a tensor with the same dtype, shape and bytes exists under another name, the finding says so. Tensors of zeros are
  excluded, because any two of them are equal.

## Why it matters
Whoever loads the checkpoint initializes the tensor with random numbers, or fails.

## How to fix
Fetch what is missing. If it was removed or renamed on purpose, write a new manifest.

## When it can be wrong
A tensor may be removed on purpose: a tied head that is no longer stored, layers of multi-token prediction, an optimizer that
was deleted to save space. Write a new manifest then. A tensor that was renamed and cast counts as removed here and as unknown
in MAN003, because only equal bytes are recognized.

## Seen in
THUDM/slime#2270 (converters that dropped frozen tensors)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.verification import Verification
from ckptcheck.text.formatting import count, join_truncated


@rule("MAN002", "vanished-tensor", severity="error", on="manifest")
def check(verification: Verification) -> Iterator[Problem]:
    verification.require_this_model()
    vanished = [
        name
        for name in verification.manifest.tensors
        if name not in verification.current and name not in verification.unreadable
    ]
    renamed = verification.renamed
    removed = [name for name in vanished if name not in renamed]
    if removed:
        yield Problem(
            f"{count(len(removed), 'tensor of the manifest is', 'tensors of the manifest are')} missing: "
            f"{join_truncated(removed)}",
            key=min(removed),
            hint="fetch what is missing, or write a new manifest if it was removed on purpose",
        )
    if renamed:
        first = min(renamed)
        yield Problem(
            f"{count(len(renamed), 'tensor has', 'tensors have')} another name now, with the same bytes: "
            f"{first} is {renamed[first]}",
            file=verification.current[renamed[first]].file,
            key=renamed[first],
            hint="write a new manifest if the new names are intended",
        )
