"""The adapter has no adapter_config.json.

## What it checks
A folder with `adapter_model.safetensors` and no model of its own has an `adapter_config.json`.

## Why it matters
PEFT, vLLM and SGLang refuse the adapter: only this file holds rank, scale and target modules.

## How to fix
Copy it from the training run's output.

## When it can be wrong
Another program may write an adapter under PEFT's file name and store its settings in the header or elsewhere: use `--ignore
ADP001` if only that program reads it. The rule ignores an adapter in the folder of its base model. ADP004 checks the content
of the config.

## Seen in
No public report: PEFT's refusal was observed.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "ADP001", "missing-adapter-config", severity="error", when=lambda ckpt: ckpt.is_adapter and not ckpt.is_single_shard
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if "adapter_config.json" not in ckpt.files:
        yield Problem(
            "there is no adapter_config.json, so PEFT, vLLM and SGLang refuse the adapter",
            file="adapter_config.json",
            hint="copy it from the training run's output",
        )
