"""The adapter has no adapter_config.json.

## What it checks
A folder with `adapter_model.safetensors` and no model of its own has an `adapter_config.json`.

## Why it matters
PEFT, vLLM and SGLang refuse the adapter: rank, scale and target modules are written there and nowhere else.

## How to fix
Copy it from the training run's output.

## When it can be wrong
An adapter that another program wrote under PEFT's file name may carry its settings in the header or elsewhere;
`--ignore ADP001` if only that program reads it. An adapter in the folder of its base model is no adapter for this
rule, and what the config says is for ADP004.

## Seen in
No public report: PEFT's refusal was observed.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule("ADP001", "missing-adapter-config", severity="error", when=lambda ckpt: ckpt.is_adapter and not ckpt.single)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if "adapter_config.json" not in ckpt.files:
        yield Problem(
            "there is no adapter_config.json, so PEFT, vLLM and SGLang refuse the adapter",
            file="adapter_config.json",
            hint="copy it from the training run's output",
        )
