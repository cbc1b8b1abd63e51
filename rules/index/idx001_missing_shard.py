"""A shard is missing that the index names, or that the numbers of the others call for.

## What it checks
- Every file that the index's `weight_map` names exists beside it. If none of them exists but other shards do, the index remains
  from an earlier save or upload.
- All files named like `…-00002-of-00005.safetensors` exist, counted from 0 or from 1 as the set does.

## Why it matters
transformers, vLLM 0.32 and SGLang 0.5.23 stop at a missing file that the index names. Older versions of the engines, and other
loaders that glob `*.safetensors`, start without it, and so does everything where there is no index: they serve layers that were
never loaded, and only the garbage they generate reveals it. Of a stale index the model itself may be complete; download tools
treat the folder as an interrupted download.

## How to fix
Fetch or upload the file again. If it was removed on purpose, or the index is stale and the shards are a complete set, write the
index again: `ckptcheck scan --fix`. Beside a single `model.safetensors` no index is needed: delete it.

## When it can be wrong
- A node that stores only its own pipeline stage, or a partial download on purpose, is an incomplete checkpoint and fires: scan
  the folder with all shards, or use `--ignore IDX001`.
- Without an index, files that are numbered for another purpose count too: one rank's share of an optimizer
  (`optim-00000-of-00008.safetensors`) beside the model.
- If a set that counts from 0 lost its first file, the finding names the last one instead: only the first file shows that the
  set counts from 0. The rule only checks that a shard exists; ST001 reports truncated and empty ones.

## Seen in
sgl-project/sglang#32279, inferencerlabs/inferencer-feedback#306, JustVugg/colibri#1317; jundot/omlx#2432, Blaizzy/mlx-vlm#1827,
Neph0s/CoSER#3 and huggingface/diffusers#14719 (a stale index)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.index import Index, escapes_folder
from ckptcheck.text.formatting import count, format_ranges, join_truncated


@rule(
    "IDX001",
    "missing-shard",
    severity="error",
    when=lambda ckpt: ckpt.has_index or (bool(ckpt.shard_sets) and not ckpt.is_single_shard),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if ckpt.index is not None and ckpt.index_is_stale:
        yield _describe_stale(ckpt, ckpt.index)
    if ckpt.index is not None and ckpt.index_decides:
        missing = [shard for shard in ckpt.index.shards if shard not in ckpt.files and not escapes_folder(shard)]
        placed: dict[str, list[str]] = {shard: [] for shard in missing}
        for name, shard in ckpt.index.weight_map.items() if missing else ():
            if shard in placed:
                placed[shard].append(name)
        for shard, names in placed.items():
            yield Problem(
                f"{shard} is missing, but the index places {count(len(names), 'tensor')} in it",
                file=ckpt.index.file,
                key="weight_map",
                hint=f"fetch {shard} again; if it lies nowhere, the save or the upload did not finish: export again",
                names=tuple(names),
            )
    if not ckpt.is_single_shard:
        yield from _find_gaps(ckpt)


def _describe_stale(ckpt: Checkpoint, index: Index) -> Problem:
    return Problem(
        f"the index is stale: none of the {count(len(index.shards), 'file')} it names exists, "
        f"while {join_truncated(ckpt.model_files)} {'does' if len(ckpt.model_files) == 1 else 'do'}",
        file=index.file,
        key="weight_map",
        hint="delete it: a single model.safetensors needs no index"
        if ckpt.model_files == ("model.safetensors",)
        else "ckptcheck scan --fix writes it again from the headers",
        names=index.shards,
    )


def _find_gaps(ckpt: Checkpoint) -> Iterator[Problem]:
    """Yield the shards that the index does not name, and that the numbers of the others call for."""
    named = ckpt.index.shards if ckpt.index is not None and ckpt.index_decides else ()
    for family in ckpt.shard_sets:
        if named and not any(name in named for name in family.files.values()):
            # SET004 reports the remains of an earlier save.
            continue
        missing = [number for number in family.missing if family.name(number) not in named]
        if missing:
            yield Problem(
                f"{len(family.files)} of {family.total} shards exist; missing: number {format_ranges(missing)}",
                file=family.name(missing[0]),
                hint="fetch the missing files again; if they lie nowhere, the save or the upload did not finish: export again",
                names=tuple(map(family.name, missing)),
            )
