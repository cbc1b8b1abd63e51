"""The index names a path where only the name of a file may stand.

## What it checks
Every value of `weight_map` is the plain name of a file beside the index: no slash of either kind, no `..`.

## Why it matters
transformers joins the path and opens what it leads to, so an index can point a loader at any file of the machine.
vLLM looks in the folder itself only, and stops at a shard in a subfolder as at a missing one; SGLang leaves it out
without a word.

## How to fix
Put the shards beside the index and write their plain names.

## When it can be wrong
transformers opens a shard in a subfolder without complaint, so a model laid out like that works where transformers
alone loads it. ckptcheck opens no such file, and nothing in it was checked: put the shards beside the index, or scan
the subfolder, before you `--ignore IDX009`.

## Seen in
The attack is described with CVE-2007-4559 for archives; an index is the same door.
"""

from collections import Counter
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.index import leaves_folder
from ckptcheck.phrase import count


@rule("IDX009", "escaping-path", severity="error", when=lambda ckpt: ckpt.has_index)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.index is not None
    for shard, tensors in sorted(Counter(ckpt.index.weight_map.values()).items()):
        if leaves_folder(shard):
            yield Problem(
                f"the index places {count(tensors, 'tensor')} in {shard!r}, which is not the name of a file beside it; "
                "it was not opened",
                file=ckpt.index.file,
                key="weight_map",
                hint="put the shard beside the index and write its plain name",
            )
