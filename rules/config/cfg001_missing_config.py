"""The model has no config.json.

## What it checks
A folder with a model has a `config.json`. Adapters have `adapter_config.json` instead, and models in Mistral's own format
`params.json`.

## Why it matters
transformers, vLLM and SGLang refuse the folder: without it they do not know which model the tensors belong to. Rules that
compare the tensors with the config cannot run either.

## How to fix
Copy `config.json` from the model this one was trained or converted from.

## When it can be wrong
A folder of safetensors may hold something other than a language model: an optimizer's state, a LoRA for a program other than
PEFT, one shard. Scan the file by itself, or use `--ignore CFG001`. A `params.json` silences the rule; it does not check
whether vLLM can read it.

## Seen in
No public report: the three loaders' refusal was observed.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule("CFG001", "missing-config", severity="error", when=lambda ckpt: not ckpt.is_single_shard and not ckpt.is_adapter)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if "config.json" not in ckpt.files and "params.json" not in ckpt.files:
        yield Problem(
            "there is no config.json, so transformers, vLLM and SGLang refuse the folder",
            file="config.json",
            hint="copy it from the model this one was trained or converted from",
        )
