"""A tensor of the manifest is gone, has another name, lies in another file, or is new.

## What it checks
- Every tensor of the manifest still exists under its name. If a tensor with the same dtype, shape and bytes exists under
  another name, the finding says so. Tensors of zeros are left out, because any two of them are equal.
- Every tensor of the checkpoint is in the manifest, by its name or by its bytes (a warning).
- Tensors with unchanged bytes are still in the same file (an info).

## Why it matters
A loader initializes a lost tensor with random numbers, or fails. A new tensor comes from a merged adapter, or remains from another
save; loaders that glob files load it too. Tensors in other files mean that the checkpoint was sharded again: the values are the
same, but an old index or a cache of file names is wrong.

## How to fix
Fetch missing tensors, remove new ones, or write a new manifest if the change is intended. A move needs nothing, if the index moved
along; IDX002 reports an index that did not.

## When it can be wrong
- A tensor may be removed on purpose: a tied head that is no longer stored, layers of multi-token prediction, an optimizer that
  was deleted to save space. A value head, or rows in a file of their own, may be added on purpose. Sharding again is harmless.
- A tensor that was renamed and cast counts as removed and as new, because only equal bytes are recognized. If the manifest's
  own tensor is gone, every new tensor with its bytes counts as renamed.
- Files without tensors, such as a config or a tokenizer, are in no manifest. If a tensor of a Megatron run lies in several
  files, their folder is compared.

## Seen in
THUDM/slime#2270 (converters that dropped frozen tensors), mflux-community/mflux#603, Blaizzy/mlx-vlm#1827
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.verification import Verification
from ckptcheck.text.formatting import count, join_truncated


@rule("MAN002", "unmatched-tensor", severity="error", on="manifest")
def check(verification: Verification) -> Iterator[Problem]:
    verification.require_this_model()
    yield from _find_vanished(verification)
    yield from _find_new(verification)
    yield from _find_moved(verification)


def _find_vanished(verification: Verification) -> Iterator[Problem]:
    renamed, current = verification.renamed, verification.current
    removed = [
        name
        for name in verification.manifest.tensors
        if name not in current and name not in verification.unreadable and name not in renamed
    ]
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
            file=current[renamed[first]].file,
            key=renamed[first],
            hint="rename them back, or write a new manifest if the new names are intended",
        )


def _find_new(verification: Verification) -> Iterator[Problem]:
    known = {*verification.manifest.tensors, *verification.renamed.values()}
    by_file: dict[str, list[str]] = {}
    for name, tensor in verification.current.items():
        if name not in known:
            by_file.setdefault(tensor.file, []).append(name)
    for file, names in sorted(by_file.items()):
        yield Problem(
            f"{count(len(names), 'tensor is', 'tensors are')} not in the manifest: {join_truncated(names)}",
            file=file,
            key=min(names),
            severity="warning",
            hint="remove it, or write a new manifest if the addition is intended",
        )


def _find_moved(verification: Verification) -> Iterator[Problem]:
    moved: dict[tuple[str, str], list[str]] = {}
    for name, old in verification.manifest.tensors.items():
        current = verification.current.get(name)
        if current is not None and current.digest == old.digest and current.file != old.file:
            moved.setdefault((old.file, current.file), []).append(name)
    for (old_file, new_file), names in moved.items():
        yield Problem(
            f"{count(len(names), 'tensor that was', 'tensors that were')} in {old_file} "
            f"{'is' if len(names) == 1 else 'are'} in this file now: {join_truncated(names)}",
            file=new_file,
            key=names[0],
            severity="info",
            hint="nothing to do, if the index was written again as well",
        )
