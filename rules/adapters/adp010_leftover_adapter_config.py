"""An adapter_config.json lies beside a whole model, and no adapter.

## What it checks
A folder with config.json and the weights of a model has no adapter_config.json, unless the adapter (`adapter_model.safetensors` or
`.bin`) is there too.

## Why it matters
Where PEFT is installed, transformers takes each folder with an adapter_config.json for that of an adapter: it looks for the
adapter's weights after those of the model, and stops with a FileNotFoundError. Trainers and reference models that are loaded
through transformers do not start; vLLM and SGLang, which do not look for adapters there, do.

## How to fix
Delete adapter_config.json: the adapter was merged into the weights. Or put the adapter beside it.

## When it can be wrong
Without PEFT, transformers loads such a folder.

## Seen in
No public report: adapters that were merged in place. Tried with transformers 5.24 and PEFT 0.21.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint

FILE = "adapter_config.json"


@rule(
    "ADP010",
    "leftover-adapter-config",
    severity="error",
    when=lambda ckpt: FILE in ckpt.files and not ckpt.is_adapter and not ckpt.is_partial and ckpt.config is not None,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if ckpt.model_files and not any(name.startswith("adapter_model.") for name in ckpt.files):
        yield Problem(
            "it lies beside a whole model, and there is no adapter: where PEFT is installed, transformers looks for "
            "adapter_model.safetensors and stops",
            file=FILE,
            hint="delete it if the adapter was merged into the weights",
        )
