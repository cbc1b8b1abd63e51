"""The model is sharded and has no index.

## What it checks
A folder with numbered shards has a `model.safetensors.index.json`.

## Why it matters
transformers refuses the folder ("no file named model.safetensors"). vLLM and SGLang start by globbing, and have no
way to see that a shard is missing or left over.

## How to fix
`ckptcheck scan --fix` writes the index from the headers of a whole set of shards.

## When it can be wrong
vLLM and SGLang glob, so a model for them alone loads without an index; `--ignore IDX011` if you accept that a lost
shard then shows only in SET001. It goes by names: shards that are called otherwise (`part1.safetensors`) have no
index either and fire nothing, and neither does a numbered shard that is scanned by itself.

## Seen in
unslothai/unsloth#7375
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.index import MODEL_INDEX
from ckptcheck.checkpoint.shard_set import ORDINAL
from ckptcheck.phrase import count


@rule(
    "IDX011",
    "missing-index",
    severity="error",
    when=lambda ckpt: not ckpt.single and any(ORDINAL.fullmatch(name) for name in ckpt.loaded),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if not any(name.endswith(".safetensors.index.json") for name in ckpt.files):
        yield Problem(
            f"the model is in {count(len(ckpt.loaded), 'numbered shard')}, but there is no index; "
            "transformers does not load shards without one",
            file=MODEL_INDEX,
            hint="ckptcheck scan --fix writes it from the headers",
        )
