"""The model has no config.json.

## What it checks
A folder with a model has a `config.json`. Adapters have `adapter_config.json` instead, and models in Mistral's own format
`params.json`. A state of accelerate (`save_state`, known by its `random_states_0.pkl`) keeps weights for `load_state`, and never
a config: that is only noted.

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

STATE_OF_ACCELERATE = "random_states_0.pkl"
"""A file that `Accelerator.save_state` writes beside the weights, and nothing else does."""


@rule("CFG001", "missing-config", severity="error", when=lambda ckpt: not ckpt.is_single_shard and not ckpt.is_adapter)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if "config.json" in ckpt.files or "params.json" in ckpt.files:
        return
    if STATE_OF_ACCELERATE in ckpt.files:
        yield Problem(
            "this is a state that accelerate's save_state wrote, without a config: load_state reads it, and no engine",
            file="config.json",
            severity="info",
            hint="to serve the model, copy config.json from the model this one was trained from",
        )
    else:
        yield Problem(
            "there is no config.json, so transformers, vLLM and SGLang refuse the folder",
            file="config.json",
            hint="copy it from the model this one was trained or converted from",
        )
