"""The layers have names that this architecture does not use.

## What it checks
For the architectures of transformers: at least one module inside the layers has a name that transformers looks for. The known
names are those that transformers itself saves, with each option of the config on and off.

## Why it matters
transformers initializes the whole model with random numbers and lists the omitted tensors in a warning. In SGLang many models
silently drop the tensors and answer /health with 200. It happens when a checkpoint in a trainer's or another library's layout
gets a `config.json`.

## How to fix
Convert the checkpoint to the Hugging Face layout of this architecture, or correct `architectures`.

## When it can be wrong
A loader with its own code (`auto_map`) may know these names; then this rule does not apply.

## Seen in
sgl-project/sglang#38616, sgl-project/sglang#38618 (GLM-5.3, 97 % of the bytes dropped)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.architecture import KnownModules
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.weights_table import WeightsTable
from ckptcheck.text.formatting import join_truncated


@rule(
    "CFG016",
    "foreign-layout",
    severity="error",
    when=lambda ckpt: _find_modules(ckpt) is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    known, stack = _find_modules(ckpt), ckpt.components.stack
    if known is None or stack is None:
        return
    modules = {
        known.module(stack.full_name(layer, name)) for layer, names in ckpt.components.layers.items() for name in names
    }
    if modules and not any(known.has(module) for module in modules):
        yield Problem(
            f"{known.architecture} has no layers with these names; transformers initializes the model with "
            f"random numbers: {join_truncated(modules)}",
            file=ckpt.file_of(stack.prefix),
            key=stack.prefix,
            hint="convert the checkpoint to this architecture's layout, or correct architectures in config.json",
        )


def _find_modules(ckpt: Checkpoint) -> KnownModules | None:
    """Return the modules of the architecture; those of an encoder or a classifier come from the table of its tensors."""
    known, table = KnownModules.of(ckpt.config), WeightsTable.of(ckpt.config)
    if known is not None or table is None or not table.required or ckpt.config is None:
        return known
    bases = frozenset(module.partition(".")[0] for module in table.modules)
    return KnownModules(ckpt.config.architecture or table.architecture, table.modules, bases)
