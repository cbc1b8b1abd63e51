"""A tensor moved to another file since the manifest was written.

## What it checks
Tensors with unchanged bytes are still in the same file.

## Why it matters
The checkpoint was sharded again. The values are the same, but an old index or a cache of file names is wrong.

## How to fix
Nothing, if the index was written again as well; IDX004 reports an index that was not.

## When it can be wrong
Sharding again is harmless, so this is only an info. MAN001 alone reports a tensor that moved and changed, and MAN002 one that
moved and was renamed. If a tensor of a Megatron run lies in several files, their folder is compared.

## Seen in
Blaizzy/mlx-vlm#1827
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.verification import Verification
from ckptcheck.text.formatting import count, join_truncated


@rule("MAN004", "moved-tensor", severity="info", on="manifest")
def check(verification: Verification) -> Iterator[Problem]:
    verification.require_this_model()
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
            hint="nothing to do, if the index was written again as well",
        )
