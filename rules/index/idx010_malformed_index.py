"""The index is not a valid index, or names a path instead of a file name.

## What it checks
`model.safetensors.index.json` is a JSON object whose `weight_map` maps tensor names to file names, and is not empty. It has
`metadata`, an object, which may be empty: transformers (5.24) stops without it; vLLM and SGLang do not. Every file name is the
plain name of a file beside the index: no slash of either kind, no `..`.

## Why it matters
transformers stops. vLLM and SGLang stop as well, or cannot find out which files belong to the model. transformers joins a path and
opens the result, so an index can point a loader to any file of the machine. vLLM looks only in the folder itself and stops at a
shard in a subfolder as if it were missing; SGLang silently omits it.

## How to fix
`ckptcheck scan --fix` writes the index again from the headers of a complete set of shards. Put the shards beside it.

## When it can be wrong
A byte order mark stops Python's JSON reader, but not that of every other language: such an index works if no loader uses
Python. A model with a shard in a subfolder works if only transformers loads it; ckptcheck does not open such a file and checks
nothing in it. IDX001 and IDX002 report names that do not exist.

## Seen in
Blaizzy/mlx-vlm#1827; CVE-2007-4559 describes the attack by paths for archives, and an index opens the same way
"""

from collections import Counter
from collections.abc import Iterator

from msgspec import structs

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.index import escapes_folder
from ckptcheck.checkpoint.views import IndexedCheckpoint
from ckptcheck.text.formatting import count


@rule("IDX010", "malformed-index", severity="error", on="index")
def check(ckpt: IndexedCheckpoint) -> Iterator[Problem]:
    for problem in ckpt.defects(
        "malformed-index", "not-json", "not-object", "byte-order-mark", files={ckpt.index.file}
    ):
        yield structs.replace(
            problem,
            message=f"the index cannot be used: {problem.message}",
            hint="ckptcheck scan --fix writes it again from the headers",
        )
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
