"""The model is sharded but has no index, or transformers does not look for files of such names.

## What it checks
A folder with numbered shards has a `model.safetensors.index.json`. Any other folder with a model's `config.json` holds
`model.safetensors`, or weights under a name that other loaders look for (`pytorch_model.bin`, `consolidated.*`, adapters,
`model.VARIANT.safetensors`); else it is a warning.

## Why it matters
transformers refuses the folder ("no file named model.safetensors"). vLLM and SGLang glob the folder, and cannot detect that a
shard is missing or remains from an earlier save. In an RL job the engine loads the checkpoint and the trainer does not.

## How to fix
`ckptcheck scan --fix` writes the index from the headers of a complete set of shards. Rename a single file to
`model.safetensors`; give several names such as `model-00001-of-0000N.safetensors`.

## When it can be wrong
vLLM and SGLang glob the folder, so a model that only they load works without an index: use `--ignore IDX011` if you accept that
only the numbers then show a lost shard (IDX001). The rule recognizes shards by name, and a numbered shard that is scanned by itself
does not fire. If only your own loader reads the checkpoint, any file name works.

## Seen in
unslothai/unsloth#7375; huggingface/transformers' own names (`SAFE_WEIGHTS_NAME`, `SAFE_WEIGHTS_INDEX_NAME`)
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.index import MODEL_INDEX
from ckptcheck.checkpoint.shard_set import ORDINAL
from ckptcheck.text.formatting import count

FINDABLE = re.compile(
    r"(model|adapter_model)(\.[\w-]+)?\.safetensors|consolidated.*\.safetensors|.*\.(bin|pth|gguf|index\.json)"
)


@rule("IDX011", "missing-index", severity="error", when=lambda ckpt: not ckpt.is_single_shard)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    is_numbered = any(ORDINAL.fullmatch(name) for name in ckpt.model_files)
    if is_numbered and not any(name.endswith(".safetensors.index.json") for name in ckpt.files):
        yield Problem(
            f"the model is in {count(len(ckpt.model_files), 'numbered shard')}, but there is no index; "
            "transformers does not load shards without one",
            file=MODEL_INDEX,
            hint="ckptcheck scan --fix writes it from the headers",
            names=ckpt.model_files,
        )
    is_model = not (ckpt.is_partial or ckpt.shard_sets) and ckpt.config is not None and ckpt.config.architecture
    weights = [name for name in ckpt.files if name.endswith(".safetensors")] if is_model else []
    if weights and not any(FINDABLE.fullmatch(name) for name in ckpt.files):
        what = (
            "a file of this name" if len(weights) == 1 else f"files of such names, {count(len(weights), 'file')} in all"
        )
        yield Problem(
            f"transformers does not look for {what}, and there is no model.safetensors",
            file=weights[0],
            severity="warning",
            hint="rename it to model.safetensors" if len(weights) == 1 else "number the files and write an index",
            names=tuple(weights),
        )
