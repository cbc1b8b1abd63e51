"""The index names a shard that is not there.

## What it checks
Every file that the index's `weight_map` names exists beside it. When none of them exists but other shards do, the
index is stale as a whole, and IDX006 says that instead.

## Why it matters
transformers, vLLM 0.32 and SGLang 0.5.23 stop at the missing file. Older versions of the engines, and other loaders that
glob `*.safetensors`, start without it and serve layers that were never loaded; only the garbage they generate shows it.

## How to fix
Fetch or upload the file again. If it was removed on purpose, write the index anew.

## When it can be wrong
A node that holds only its own share of a model, for pipeline parallelism, and a download of some shards on purpose
are no whole checkpoint, and fire it: scan the folder with all of them, or `--ignore IDX001`. A shard whose name
exists is enough here; one that is cut off or empty is ST001 or ST012.

## Seen in
sgl-project/sglang#32279, inferencerlabs/inferencer-feedback#306, JustVugg/colibri#1317
"""

from collections import Counter
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.index import leaves_folder
from ckptcheck.phrase import count


@rule("IDX001", "missing-shard", severity="error", when=lambda ckpt: ckpt.has_index)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if ckpt.index is None or ckpt.index_is_stale:
        return
    for shard, tensors in sorted(Counter(ckpt.index.weight_map.values()).items()):
        if shard not in ckpt.files and not leaves_folder(shard):
            yield Problem(
                f"{shard} is not there, but the index places {count(tensors, 'tensor')} in it",
                file=ckpt.index.file,
                key="weight_map",
                hint=f"fetch {shard} again, or find out why it was never uploaded",
            )
