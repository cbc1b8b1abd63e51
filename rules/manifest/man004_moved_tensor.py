"""A tensor lies in another file than when the manifest was taken.

## What it checks
Tensors with unchanged bytes are still in the file they were in.

## Why it matters
The checkpoint was sharded anew. The values are the same; an old index or a cache of file names is not.

## How to fix
Nothing, if the index was written anew too; IDX004 says if it was not.

## When it can be wrong
Sharding anew is harmless, so it is an information only. A tensor that moved and changed is MAN001's alone, and one
that moved and was renamed is MAN002's. Of a Megatron run whose tensors lie in several files, the folder is what is
compared.

## Seen in
Blaizzy/mlx-vlm#1827
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.manifest import Verification
from ckptcheck.phrase import count, few


@rule("MAN004", "moved-tensor", severity="info", on="manifest")
def check(seen: Verification) -> Iterator[Problem]:
    moved: dict[tuple[str, str], list[str]] = {}
    for name, was in seen.manifest.tensors.items():
        found = seen.now.get(name)
        if found is not None and found.digest == was.digest and found.file != was.file:
            moved.setdefault((was.file, found.file), []).append(name)
    for (old, new), names in moved.items():
        yield Problem(
            f"{count(len(names), 'tensor that was', 'tensors that were')} in {old} "
            f"{'lies' if len(names) == 1 else 'lie'} here now: {few(names)}",
            file=new,
            key=names[0],
            hint="nothing to do if the index was written anew too",
        )
