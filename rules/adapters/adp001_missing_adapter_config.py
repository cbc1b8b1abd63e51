"""The adapter has no adapter_config.json, or a whole model has one.

## What it checks
A folder with `adapter_model.safetensors` and no model of its own has an `adapter_config.json`. A folder with config.json and the
weights of a model has none, unless the adapter is there too.

## Why it matters
PEFT, vLLM and SGLang refuse the adapter: only this file holds rank, scale and target modules. Beside a whole model
transformers takes it, where PEFT is installed, for that of an adapter: it stops with a FileNotFoundError, so that trainers do not
start. vLLM and SGLang do not look for adapters there.

## How to fix
Copy it from the training run's output. Beside a model delete it: the adapter was merged into the weights.

## When it can be wrong
Another program may write an adapter under PEFT's file name and store its settings in the header or elsewhere: use `--ignore
ADP001` if only that program reads it. The rule ignores an adapter in the folder of its base model. ADP004 checks the content
of the config.

## Seen in
No public report: PEFT's refusal was observed, and adapters that were merged in place.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint

FILE = "adapter_config.json"


@rule(
    "ADP001",
    "missing-adapter-config",
    severity="error",
    when=lambda ckpt: not ckpt.is_single_shard and (ckpt.is_adapter or FILE in ckpt.files),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if ckpt.is_adapter and FILE not in ckpt.files:
        yield Problem(
            "there is no adapter_config.json, so PEFT, vLLM and SGLang refuse the adapter",
            file=FILE,
            hint="copy it from the training run's output",
        )
    has_adapter = ckpt.is_adapter or any(name.startswith("adapter_model.") for name in ckpt.files)
    if FILE in ckpt.files and not has_adapter and ckpt.config is not None and ckpt.model_files:
        yield Problem(
            "it lies beside a whole model, and there is no adapter: where PEFT is installed, transformers looks for "
            "adapter_model.safetensors and stops",
            file=FILE,
            hint="delete it if the adapter was merged into the weights",
        )
