"""There are tensors that the manifest does not know.

## What it checks
Every tensor of the checkpoint is in the manifest, by name or, under another name, by its bytes (MAN002).

## Why it matters
Something was added since: an adapter merged in, leftovers of another save. Loaders that glob load it too.

## How to fix
Take a new manifest if the addition was meant, else remove it.

## When it can be wrong
An addition that is meant, such as a value head or rows in a file of their own, is a warning only. A copy of a tensor
that was renamed is not told from the original: where the manifest's own tensor is gone, every new tensor with its
bytes passes here. Files that hold no tensor, such as a config or a tokenizer, are in no manifest.

## Seen in
mflux-community/mflux#603
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.manifest import Verification
from ckptcheck.phrase import count, few


@rule("MAN003", "unknown-tensor", severity="warning", on="manifest")
def check(seen: Verification) -> Iterator[Problem]:
    renamed = set(seen.renamed.values())
    new = [name for name in seen.now if name not in seen.manifest.tensors and name not in renamed]
    for file in sorted({seen.now[name].file for name in new}):
        names = [name for name in new if seen.now[name].file == file]
        yield Problem(
            f"{count(len(names), 'tensor is', 'tensors are')} not in the manifest: {few(names)}",
            file=file,
            key=min(names),
            hint="take a new manifest if the addition was meant",
        )
