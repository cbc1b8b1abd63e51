"""There are more layers than the config declares.

## What it checks
No layer of the language model has a number at or beyond `num_hidden_layers`, except layers of multi-token prediction,
which are recognised by what they hold (`eh_proj`, `enorm`, `hnorm`, `shared_head`, or a name with `mtp` or `nextn`).

## Why it matters
transformers leaves the surplus layers out, so the model computes with fewer than it was trained with; vLLM stops with
a KeyError for most architectures.

## How to fix
Correct `num_hidden_layers`, or delete the layers that are left over from another model.

## When it can be wrong
Layers of multi-token prediction whose tensors have other names are taken for surplus, also when the config declares
them: whether they are meant cannot be told from a number. So are blocks that code of the model's own (`auto_map`)
reads beyond the declared ones. `--ignore CFG004` there. A surplus layer that holds such a name passes, whatever the
config declares.

## Seen in
No public report: configs copied from a smaller sibling.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import ranges


@rule(
    "CFG004",
    "surplus-layer",
    severity="error",
    when=lambda ckpt: bool(ckpt.anatomy.layers) and ckpt.anatomy.depth is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    anatomy = ckpt.anatomy
    assert anatomy.stack is not None
    assert anatomy.depth is not None
    assert ckpt.config is not None
    surplus = {layer for layer in anatomy.layers if layer >= anatomy.depth}
    if surplus:
        key = ckpt.config.key(*anatomy.depth_names)
        yield Problem(
            f"{key.rpartition('.')[2]} is {anatomy.depth}, but {anatomy.stack.prefix} has layers beyond that: "
            f"{ranges(surplus)}; transformers leaves them out",
            file=ckpt.config.file,
            key=key,
            hint="correct the number, or delete the layers if they are left over",
        )
