"""The index names a shard that does not exist.

## What it checks
Every file that the index's `weight_map` names exists beside it. If none of them exists but other shards do, the whole index
is stale, and IDX006 reports that instead.

## Why it matters
transformers, vLLM 0.32 and SGLang 0.5.23 stop at the missing file. Older versions of the engines, and other loaders that glob
`*.safetensors`, start without it and serve layers that were never loaded; only the garbage they generate reveals it.

## How to fix
Fetch or upload the file again. If it was removed on purpose, write the index again.

## When it can be wrong
A node that stores only its own pipeline stage, or a partial download on purpose, is an incomplete checkpoint and fires: scan
the folder with all shards, or use `--ignore IDX001`. The rule only checks that the shard exists; ST001 reports
truncated and empty ones.

## Seen in
sgl-project/sglang#32279, inferencerlabs/inferencer-feedback#306, JustVugg/colibri#1317
"""

from collections import Counter
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.index import escapes_folder
from ckptcheck.checkpoint.views import IndexedCheckpoint
from ckptcheck.text.formatting import count


@rule("IDX001", "missing-shard", severity="error", on="index", when=lambda ckpt: ckpt.has_index)
def check(ckpt: IndexedCheckpoint) -> Iterator[Problem]:
    if ckpt.index_is_stale:
        return
    for shard, tensors in sorted(Counter(ckpt.index.weight_map.values()).items()):
        if shard not in ckpt.files and not escapes_folder(shard):
            yield Problem(
                f"{shard} is missing, but the index places {count(tensors, 'tensor')} in it",
                file=ckpt.index.file,
                key="weight_map",
                hint=f"fetch {shard} again, or find out why it was never uploaded",
            )
