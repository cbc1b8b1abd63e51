"""Two sets of weights are in one folder, and loaders choose different ones or mix them.

## What it checks
- Numbered shards with the same stem have the same total: `model-…-of-00002` beside `model-…-of-00004` are two saves in one
  folder.
- If an index names existing shards, there is no `model.safetensors` that it does not name.
- No folder holds Mistral's `consolidated*.safetensors` beside the shards of the same model (a warning).

## Why it matters
Every program that globs the folder reads both sets of shards: MLX, merge scripts and, without an index, vLLM and SGLang.
Tensors of the older save overwrite the newer ones, or stop the load with a wrong shape. transformers loads `model.safetensors`
and never opens the index; vLLM and SGLang load what the index names. vLLM with `load_format=auto` loads only the consolidated
file if there is one (0.32); SGLang and transformers never do. So the trainer and the engine, or two engines, use different
weights.

## How to fix
Delete the older set. The index names the current one; without an index, compare the dates of the files. Or load with an
explicit `--load-format`.

## When it can be wrong
- Both may hold the same values: a tool merged the shards and kept them, and repositories of Mistral ship both formats.
  `ckptcheck diff` of the two shows whether they do.
- A team may keep two saves in one folder on purpose and load with an index, or by explicit names. Move one, or use `--ignore
  SET002`.
- Two stems count as two different models: SET004 or IDX005 reports those. A newer save with the same total overwrites the older
  one, so nothing remains to be found.

## Seen in
unslothai/unsloth-zoo#808, mflux-community/mflux#603, Neph0s/CoSER#3, huggingface/diffusers#14719, Blaizzy/mlx-vlm#1464,
Blaizzy/mlx-vlm#1329, vllm-project/vllm#40765 (consolidated)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated


@rule("SET002", "two-models", severity="error", when=lambda ckpt: not ckpt.is_single_shard)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    index = ckpt.index if ckpt.index_decides else None
    named = index.shards if index is not None else ()
    for stem in sorted({family.stem for family in ckpt.shard_sets}):
        families = [family for family in ckpt.shard_sets if family.stem == stem]
        if len(families) == 1 or all(name in named for family in families for name in family.files.values()):
            continue
        totals = " and ".join(str(family.total) for family in families)
        stale = [family for family in families if named and not any(name in named for name in family.files.values())]
        yield Problem(
            f"two saves are in one folder: sets of {totals} shards share the name {stem}; loaders that glob read both",
            file=next(iter((stale or families)[-1].files.values())),
            hint=f"delete the {len(stale[0].files)} shards of the set of {stale[0].total}: the index does not name them"
            if stale
            else "delete the set of the earlier save",
            names=tuple(name for family in families for name in family.files.values()),
        )
    if index is not None and "model.safetensors" in ckpt.files and "model.safetensors" not in named:
        yield Problem(
            f"transformers loads this file, vLLM and SGLang load the {count(len(named), 'shard')} "
            f"that {index.file} names: two models in one folder",
            file="model.safetensors",
            hint="delete the one from the earlier save",
            names=named,
        )
    consolidated = [name for name in ckpt.shards if name.startswith("consolidated")]
    if consolidated and not set(consolidated) & set(ckpt.model_files):
        yield Problem(
            f"engines load different weights: vLLM loads {join_truncated(consolidated)}, SGLang and transformers load "
            f"{join_truncated(ckpt.model_files, 1)}; they serve the same model only if both hold the same values",
            file=consolidated[0],
            severity="warning",
            hint="keep one format in the folder that is served",
        )
