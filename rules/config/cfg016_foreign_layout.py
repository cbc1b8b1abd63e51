"""The layers have names that this architecture does not have.

## What it checks
For the architectures that transformers knows: of the modules inside the layers, at least one has a name that
transformers would look for. Known names were taken from what transformers itself saves, with each option of the
config on and off.

## Why it matters
transformers starts the whole model from random numbers and lists what it left out in a warning; in SGLang many models drop
the tensors without a word and answer /health with 200. It happens when a checkpoint in a trainer's or another library's
layout gets a `config.json`.

## How to fix
Convert the checkpoint to the Hugging Face layout of this architecture, or correct `architectures`.

## When it can be wrong
A loader with code of its own (`auto_map`) may know these names; then this rule does not apply.

## Seen in
sgl-project/sglang#38616, sgl-project/sglang#38618 (GLM-5.3, 97 % of the bytes dropped)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.architecture import KnownNames
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import few


@rule(
    "CFG016",
    "foreign-layout",
    severity="error",
    when=lambda ckpt: KnownNames.of(ckpt.config) is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    known, stack = KnownNames.of(ckpt.config), ckpt.anatomy.stack
    if known is None or stack is None:
        return
    modules = {known.module(stack.name(layer, name)) for layer, names in ckpt.anatomy.layers.items() for name in names}
    if modules and not any(known.has(module) for module in modules):
        yield Problem(
            f"{known.architecture} has no layers with these names; transformers would start the model from random "
            f"numbers: {few(modules)}",
            file=ckpt.holder(stack.prefix),
            key=stack.prefix,
            hint="convert the checkpoint to this architecture's layout, or correct architectures in config.json",
        )
