"""Weights in Mistral's format are beside weights in the Hugging Face format.

## What it checks
No folder holds `consolidated*.safetensors` beside the shards of the same model.

## Why it matters
vLLM with `load_format=auto` loads only the consolidated file if there is one (0.32); SGLang and transformers never do. After
fine-tuning in one format, the two engines serve different weights. Repositories of Mistral ship both with the same values,
which is legal.

## How to fix
Keep one format in the folder that is served, or load with an explicit `--load-format`.

## When it can be wrong
Repositories of Mistral ship both with the same values, and a team that passes `--load-format` to vLLM chooses one: use
`--ignore SET005`. The rule does not compare the values, so heed the warning if one of the two was trained further.

## Seen in
vllm-project/vllm#40765
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import join_truncated


@rule("SET005", "consolidated-beside-shards", severity="warning", when=lambda ckpt: not ckpt.is_single_shard)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    consolidated = [name for name in ckpt.shards if name.startswith("consolidated")]
    if consolidated and not set(consolidated) & set(ckpt.model_files):
        yield Problem(
            f"engines load different weights: vLLM loads {join_truncated(consolidated)}, SGLang and transformers load "
            f"{join_truncated(ckpt.model_files, 1)}; they serve the same model only if both hold the same values",
            file=consolidated[0],
            hint="keep one format in the folder that is served",
        )
