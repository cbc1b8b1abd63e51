"""The model is sharded but has no index.

## What it checks
A folder with numbered shards has a `model.safetensors.index.json`.

## Why it matters
transformers refuses the folder ("no file named model.safetensors"). vLLM and SGLang glob the folder, and cannot detect that a
shard is missing or remains from an earlier save.

## How to fix
`ckptcheck scan --fix` writes the index from the headers of a complete set of shards.

## When it can be wrong
vLLM and SGLang glob the folder, so a model that only they load works without an index: use `--ignore IDX011` if you accept that
only the numbers then show a lost shard (IDX001). The rule recognizes shards by name: other names (`part1.safetensors`) never
fire, nor does a numbered shard that is scanned by itself.

## Seen in
unslothai/unsloth#7375
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.index import MODEL_INDEX
from ckptcheck.checkpoint.shard_set import ORDINAL
from ckptcheck.text.formatting import count


@rule(
    "IDX011",
    "missing-index",
    severity="error",
    when=lambda ckpt: not ckpt.is_single_shard and any(ORDINAL.fullmatch(name) for name in ckpt.model_files),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if not any(name.endswith(".safetensors.index.json") for name in ckpt.files):
        yield Problem(
            f"the model is in {count(len(ckpt.model_files), 'numbered shard')}, but there is no index; "
            "transformers does not load shards without one",
            file=MODEL_INDEX,
            hint="ckptcheck scan --fix writes it from the headers",
        )
