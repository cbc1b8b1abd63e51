"""The index names a path instead of a file name.

## What it checks
Every value of `weight_map` is the plain name of a file beside the index: no slash of either kind, no `..`.

## Why it matters
transformers joins the path and opens the result, so an index can point a loader to any file of the machine. vLLM looks only
in the folder itself and stops at a shard in a subfolder as if it were missing; SGLang silently omits it.

## How to fix
Put the shards beside the index and write their plain names.

## When it can be wrong
transformers opens a shard in a subfolder, so such a model works if only transformers loads it. ckptcheck does not open such a
file and checks nothing in it: put the shards beside the index, or scan the subfolder, before you use `--ignore IDX009`.

## Seen in
CVE-2007-4559 describes the attack for archives; an index opens the same way.
"""

from collections import Counter
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.index import escapes_folder
from ckptcheck.checkpoint.views import IndexedCheckpoint
from ckptcheck.text.formatting import count


@rule("IDX009", "escaping-path", severity="error", on="index", when=lambda ckpt: ckpt.has_index)
def check(ckpt: IndexedCheckpoint) -> Iterator[Problem]:
    escaping = [shard for shard in ckpt.index.shards if escapes_folder(shard)]
    tensors = Counter(ckpt.index.weight_map.values()) if escaping else {}
    for shard in escaping:
        yield Problem(
            f"the index places {count(tensors[shard], 'tensor')} in {shard!r}, which is not the name of a file beside it; "
            "ckptcheck did not open it",
            file=ckpt.index.file,
            key="weight_map",
            hint="put the shard beside the index and write its plain name",
        )
