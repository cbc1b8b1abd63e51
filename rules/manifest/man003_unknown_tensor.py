"""The checkpoint holds a tensor that the manifest does not list.

## What it checks
Every tensor of the checkpoint is in the manifest, by name or, under another name, by its bytes (MAN002).

## Why it matters
Something was added since the manifest was written: a merged adapter, leftovers of another save. Loaders that glob files load
it too.

## How to fix
Write a new manifest if the addition is intended; otherwise remove the tensor.

## When it can be wrong
An intended addition, such as a value head or rows in a file of their own, is only a warning. A copy of a renamed tensor
cannot be distinguished from the original: if the manifest's own tensor is gone, every new tensor with its bytes passes here.
Files without tensors, such as a config or a tokenizer, are in no manifest.

## Seen in
mflux-community/mflux#603
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.verification import Verification
from ckptcheck.text.formatting import count, join_truncated


@rule("MAN003", "unknown-tensor", severity="warning", on="manifest")
def check(verification: Verification) -> Iterator[Problem]:
    verification.require_this_model()
    renamed = set(verification.renamed.values())
    new = [name for name in verification.current if name not in verification.manifest.tensors and name not in renamed]
    for file in sorted({verification.current[name].file for name in new}):
        names = [name for name in new if verification.current[name].file == file]
        yield Problem(
            f"{count(len(names), 'tensor is', 'tensors are')} not in the manifest: {join_truncated(names)}",
            file=file,
            key=min(names),
            hint="remove it, or write a new manifest if the addition is intended",
        )
