"""Weights in Mistral's format lie beside weights in the Hugging Face format.

## What it checks
`consolidated*.safetensors` does not lie in the same folder as the shards of the same model.

## Why it matters
vLLM with `load_format=auto` loads only the consolidated file where it finds one (0.32), SGLang and transformers never
do. After fine-tuning in one format the two engines serve different weights. Repositories of Mistral ship both with
the same values: there this is legal.

## How to fix
Keep one format in the folder that is served, or load with an explicit `--load-format`.

## When it can be wrong
Repositories of Mistral ship both with the same values, and a team that passes `--load-format` to vLLM has decided
which one it takes. `--ignore SET005` there. The values are not compared, so once one of the two is trained further,
the warning is due.

## Seen in
vllm-project/vllm#40765
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import few


@rule("SET005", "consolidated-beside-shards", severity="warning", when=lambda ckpt: not ckpt.single)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    consolidated = [name for name in ckpt.shards if name.startswith("consolidated")]
    if consolidated and not set(consolidated) & set(ckpt.loaded):
        yield Problem(
            f"engines disagree which weights to load: vLLM takes {few(consolidated)}, SGLang and transformers take "
            f"{few(ckpt.loaded, 1)}; they serve the same model only if both hold the same values",
            file=consolidated[0],
            hint="keep one format in the folder that is served",
        )
