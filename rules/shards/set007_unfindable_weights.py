"""The weights have names that transformers does not look for.

## What it checks
A folder with a model's `config.json` holds `model.safetensors`, an index, or numbered shards; or weights under a name that
other loaders look for (`pytorch_model.bin`, `consolidated.*`, adapters, `model.VARIANT.safetensors`).

## Why it matters
`from_pretrained` stops: "no file named model.safetensors". vLLM and SGLang glob the folder and serve whatever they find, so
in an RL job the engine loads the checkpoint and the trainer does not.

## How to fix
Rename the file to `model.safetensors`, or give several files `model-00001-of-0000N.safetensors` names and an index.

## When it can be wrong
If only your own loader reads the checkpoint, any file name works: ignore the rule there.

## Seen in
huggingface/transformers' own names (`SAFE_WEIGHTS_NAME`, `SAFE_WEIGHTS_INDEX_NAME`)
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count

FINDABLE = re.compile(
    r"(model|adapter_model)(\.[\w-]+)?\.safetensors|consolidated.*\.safetensors|.*\.(bin|pth|gguf|index\.json)"
)


def _applies(ckpt: Checkpoint) -> bool:
    return not (ckpt.is_partial or ckpt.shard_sets) and ckpt.config is not None and ckpt.config.architecture is not None


@rule("SET007", "unfindable-weights", severity="warning", when=_applies)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    weights = [name for name in ckpt.files if name.endswith(".safetensors")]
    if weights and not any(FINDABLE.fullmatch(name) for name in ckpt.files):
        what = (
            "a file of this name" if len(weights) == 1 else f"files of such names, {count(len(weights), 'file')} in all"
        )
        yield Problem(
            f"transformers does not look for {what}, and there is no model.safetensors",
            file=weights[0],
            hint="rename it to model.safetensors" if len(weights) == 1 else "number the files and write an index",
        )
