"""A tensor of the manifest is no longer there.

## What it checks
Every tensor of the manifest is still there under its name. Where one of the same dtype, shape and bytes is there under another
name, the finding says so; not for tensors of zeros, of which any two are the same.

## Why it matters
Whoever loads the checkpoint starts the tensor from random numbers, or stops.

## How to fix
Fetch what is missing, or take a new manifest if it was removed or renamed on purpose.

## When it can be wrong
Removing a tensor may be meant: a tied head that is no longer stored, layers of multi-token prediction, an optimizer
that was deleted to save room. Take a new manifest then. A tensor that was renamed and cast at once counts as gone,
and as unknown for MAN003, since only equal bytes are recognised.

## Seen in
THUDM/slime#2270 (converters that dropped frozen tensors)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.manifest import Verification
from ckptcheck.phrase import count, few


@rule("MAN002", "vanished-tensor", severity="error", on="manifest")
def check(seen: Verification) -> Iterator[Problem]:
    vanished = [name for name in seen.manifest.tensors if name not in seen.now and name not in seen.broken]
    renamed = seen.renamed
    lost = [name for name in vanished if name not in renamed]
    if lost:
        yield Problem(
            f"{count(len(lost), 'tensor of the manifest is', 'tensors of the manifest are')} no longer there: {few(lost)}",
            key=min(lost),
            hint="fetch what is missing, or take a new manifest if it was removed on purpose",
        )
    if renamed:
        first = min(renamed)
        yield Problem(
            f"{count(len(renamed), 'tensor has', 'tensors have')} another name now, with the same bytes: "
            f"{first} is {renamed[first]}",
            file=seen.now[renamed[first]].file,
            key=renamed[first],
            hint="take a new manifest if the new names are meant",
        )
